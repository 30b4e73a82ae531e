"""Tests a real mail server (aiosmtpd) that hangs twice: once after EHLO, and once after a whole mail. The service sends
each of these mails again after 20 seconds, under the same id. Other mails and the messages of another entry arrive
meanwhile. Arguments: the binary and the demonstration's configuration."""

import asyncio
import logging
import signal
import sys
import tempfile
import threading
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import trustme
from aiosmtpd.smtp import MISSING

from mail import BY_MAIL, HOST, Place, Post, ask, check, context, deliveries, server, until

SUBJECTS = {"carol": "等待您决定：refund_payment（demo）"}
IN_TIME = "Waits for you: refund_payment (demo)"


class HangingPost(Post):
    """Hangs in two sessions: in one at AUTH, the first command after EHLO, and in the other after it has taken a
    mail."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = ["AUTH", "DATA"]

    async def hang(self, word: str) -> None:
        if word in self.hangs:
            self.hangs.remove(word)
            await asyncio.Event().wait()

    async def handle_AUTH(self, server, session, envelope, arguments):
        await self.hang("AUTH")
        return MISSING  # continues the usual sign-in

    async def handle_DATA(self, server, session, envelope):
        answer = await super().handle_DATA(server, session, envelope)
        await self.hang("DATA")
        return answer


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def hangs(post: HangingPost, client: httpx.Client) -> None:
    request = ask(client, 39)

    def states() -> dict[str | None, tuple[str, int]]:
        return {user: (one["state"], one["attempts"]) for user, one in deliveries(client, request).items()}

    # The webhook's delivery has the person None.
    waiting, sent = ("due", 0), ("sent", 1)
    until("another entry and another mail arrive meanwhile", lambda: sorted(states().values()) == [waiting, waiting, sent, sent])
    assert states()[None] == sent and not post.hangs, states()
    held_up = {user for user, state in states().items() if state == waiting}

    attempts: dict[str, dict] = {}

    def failed() -> bool:
        found = deliveries(client, request)
        attempts.update({user: found[user]["last"] for user in held_up if found[user]["state"] == "due" and found[user]["last"]})
        return attempts.keys() == held_up

    until("both attempts end", failed)
    for attempt in attempts.values():
        assert attempt["problem"] == "the mail server did not answer in time", attempt
        assert attempt["milliseconds"] >= 20_000, attempt
    until("both are sent again", lambda: {state for state, _ in states().values()} == {"sent"})
    assert all(states()[user] == ("sent", 2) for user in held_up), states()

    told = deliveries(client, request)
    copies = []
    for user in ("bob", "carol", "dora"):
        mails = post.mails[f"{user}@acme.example"]
        copies.append(len(mails))
        for mail in mails:  # a second mail has the delivery's id, too
            check(client, mail, told[user], SUBJECTS.get(user, IN_TIME))
    assert sorted(copies) == [1, 1, 2], "the server took one mail twice, and the others once"


def main(binary: str, demo: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    authority, post = trustme.CA(), HangingPost()
    hook = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        trusted = Path(name) / "authority.pem"
        authority.cert_pem.write_to_path(str(trusted))
        place = Place(Path(name), binary, Path(demo).read_text(), trusted)
        secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
        webhook = f'webhook: {{ url: "http://127.0.0.1:{hook.server_port}/", secrets: ["{secret}"] }}'
        place.entries = f"{BY_MAIL}, {{ name: by-hook, {webhook} }}"
        with server(post, tls_context=context(authority, HOST), require_starttls=True) as port:
            with place.serve(f"smtp://{HOST}:{port}") as client:
                hangs(post, client)
    print("aiosmtpd: mails to a server that hangs are tried again, and others are not held up")


if __name__ == "__main__":
    main(*sys.argv[1:])
