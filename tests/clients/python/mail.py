"""Tests mails with a real mail server (aiosmtpd) that demands TLS and a password, and with Python's own parser of
mails. The questions of the built-in demonstration arrive complete and encrypted. A temporary refusal is tried again; a
permanent one is not. A server that the service cannot trust learns nothing. Arguments: the binary and the
demonstration's configuration."""

import base64
import email
import email.policy
import logging
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Callable, Iterator

import httpx
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

sys.path.append(str(Path(__file__).parents[2] / "support"))
from ports import free_port  # noqa: E402

USER = "holdpoint"
PASSWORD = "canary-password-0123456789"
ALICE = "alice-key-0123456789"
OPS = "ops-key-0123456789ab"
FROM = "holdpoint@acme.example"
BOB, CAROL, DORA = (f"{user}@acme.example" for user in ("bob", "carol", "dora"))
# The service does not treat this address as loopback, so the service demands TLS. A connection to the address
# reaches this machine.
HOST = "0.0.0.0"
SETTINGS = f"""
auth:
  api_keys:
    - {{ user: alice, tenant: acme, key: "{ALICE}" }}
    - {{ user: ops, tenant: acme, key: "{OPS}", admin: true, may: [read] }}
  people:
    - {{ user: bob, groups: [finance], email: "{BOB}" }}
    - {{ user: carol, groups: [finance], email: "{CAROL}", language: zh }}
    - {{ user: dora, groups: [finance], email: "{DORA}" }}
secrets: {{ keys: [ {{ id: k1, key: "{base64.b64encode(os.urandom(32)).decode()}" }} ] }}
notify:
  links: {{ may: decide }}
  mail: {{ url: "{{url}}", user: "{USER}", password: "${{SMTP_PASSWORD}}", from: "Holdpoint <{FROM}>" }}
  to: [ {{entries}} ]
"""
BY_MAIL = "{ name: by-mail, mail: { to: approvers }, gather: 0s }"


class Post:
    """Records the mails that a server took. Also records each command, and whether it was encrypted by TLS."""

    def __init__(self) -> None:
        self.mails: dict[str, list[EmailMessage]] = {}
        self.told: list[tuple[str, bool]] = []
        self.password = PASSWORD
        self.refused: dict[str, str] = {}  # the reply that refuses the next mail to an address
        self.sealed = False

    def hear(self, word: str, session) -> None:
        self.told.append((word, self.sealed or session.ssl is not None))

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        self.hear("EHLO", session)
        session.host_name = hostname
        return responses

    async def handle_MAIL(self, server, session, envelope, address, options):
        self.hear("MAIL", session)
        envelope.mail_from = address
        return "250 fine"

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address in self.refused:
            return self.refused.pop(address)
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server, session, envelope):
        self.hear("DATA", session)
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        self.mails.setdefault(",".join(envelope.rcpt_tos), []).append(mail)
        return "250 taken"

    def sign_in(self, server: SMTP, session, envelope, mechanism: str, data) -> AuthResult:
        self.hear("AUTH", session)
        known = LoginPassword(USER.encode(), self.password.encode())
        return AuthResult(success=data == known, handled=False)


def context(authority: trustme.CA, *names: str):
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(found)
    return found


@contextmanager
def server(post: Post, **settings) -> Iterator[int]:
    port = free_port()
    post.sealed = "ssl_context" in settings
    settings.setdefault("auth_require_tls", not post.sealed)
    running = Controller(
        post, hostname="127.0.0.1", port=port, authenticator=post.sign_in, auth_required=True, **settings
    )
    running.start()
    try:
        yield port
    finally:
        running.stop()


def until(what: str, found: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not found():
        assert time.monotonic() < end, f"mail: not in time: {what}"
        time.sleep(0.05)


class Place:
    """A folder with the service's configuration and log, and the way to run the binary in it."""

    def __init__(self, folder: Path, binary: str, demo: str, trusted: Path) -> None:
        self.folder, self.binary, self.demo = folder, binary, demo
        self.trusted = trusted
        self.log = folder / "service.log"
        self.entries = BY_MAIL

    def write(self, url: str) -> Path:
        path = self.folder / "holdpoint.yaml"
        held = "need a human. }"
        assert held in self.demo
        demo = self.demo.replace(held, "need a human., approvers: { groups: [finance] } }")
        path.write_text(demo + SETTINGS.replace("{url}", url).replace("{entries}", self.entries))
        return path

    def command(self, *arguments: str) -> dict:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDPOINT_")}
        variables = {**clean, "SSL_CERT_FILE": str(self.trusted), "SMTP_PASSWORD": PASSWORD}
        return {"args": [self.binary, *arguments], "env": variables, "cwd": self.folder}

    def ping(self, url: str) -> subprocess.CompletedProcess:
        """Runs `holdpoint notify`, which sends a test mail to the sender's address."""
        config = self.write(url)
        command = self.command("notify", "by-mail", "--config", str(config))
        done = subprocess.run(**command, capture_output=True, text=True, timeout=60)
        assert PASSWORD not in done.stdout + done.stderr
        return done

    @contextmanager
    def process(self, url: str, port: int, database: str, **variables: str) -> Iterator[subprocess.Popen]:
        """Runs the service until the end of the block."""
        config = self.write(url)
        arguments = ["--listen", f"127.0.0.1:{port}", "--database-url", database]
        command = self.command("serve", "--config", str(config), *arguments)
        command["env"].update(variables)
        with self.log.open("a") as log:
            process = subprocess.Popen(**command, stdout=log, stderr=log)

        def ready() -> bool:
            assert process.poll() is None, self.log.read_text()
            try:
                return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).is_success
            except httpx.TransportError:
                return False

        try:
            until("the service is ready", ready)
            yield process
        finally:
            process.terminate()
            process.wait()

    @contextmanager
    def serve(self, url: str) -> Iterator[httpx.Client]:
        port, database = free_port(), f"sqlite://{self.folder}/holdpoint.db"
        address = f"http://127.0.0.1:{port}"
        with self.process(url, port, database):
            with httpx.Client(base_url=address, timeout=30, trust_env=False) as client:
                yield client


def ask(client: httpx.Client, order: int) -> str:
    body = {"input": f"Please refund 120 for order {order}"}
    task = client.post("/v1/tasks", json=body, headers={"authorization": f"Bearer {ALICE}"}).json()
    assert task["status"] == "Paused", task
    return task["pending"][0]["request_id"]


def deliveries(client: httpx.Client, request: str) -> dict[str, dict]:
    answer = client.get("/v1/deliveries?limit=200", headers={"authorization": f"Bearer {OPS}"})
    assert answer.is_success and PASSWORD not in answer.text and "@" not in answer.text, answer.text
    return {one["person"]: one for one in answer.json()["deliveries"] if one["request_id"] == request}


def check(client: httpx.Client, mail: EmailMessage, delivery: dict, subject: str) -> None:
    """Checks a mail: its headers, its two parts, and its only link, which leads to the question."""
    request = delivery["request_id"]
    assert mail["Message-ID"] == f"<{delivery['delivery_id']}@acme.example>", mail["Message-ID"]
    assert mail["References"] == mail["In-Reply-To"] == f"<{request}@acme.example>", mail["References"]
    assert mail["Auto-Submitted"] == "auto-generated" and mail["X-Auto-Response-Suppress"] == "All"
    assert mail["Subject"] == subject, mail["Subject"]
    assert str(mail["From"]) == f"Holdpoint <{FROM}>" and mail["Date"].datetime is not None
    assert mail.get_content_type() == "multipart/alternative" and not mail.defects, mail.defects
    kinds = [part.get_content_type() for part in mail.iter_parts()]
    assert kinds == ["text/plain", "text/html"], kinds
    for part in mail.iter_parts():
        assert part.get_content_charset() == "utf-8" and not part.defects
        text = part.get_content()
        links = set(re.findall(r"https?://[^\s\"<>]+", text))
        assert len(links) == 1, links
        # A sealed link is random, so it may contain these digits by chance.
        words = " ".join(word for word in text.split() if "://" not in word)
        assert "refund_payment" in words and "120" not in words, text
    page = client.get(links.pop())
    assert page.is_success and "Refund 120 for order" in page.text, page.text


def refusals_and_success(place: Place, post: Post, client: httpx.Client) -> None:
    def states(request: str) -> dict[str, tuple[str, int]]:
        return {user: (one["state"], one["attempts"]) for user, one in deliveries(client, request).items()}

    # A wrong password is not the fault of a mail. So each mail is tried again, and arrives once the password is right.
    post.password = "another"
    first = ask(client, 37)
    once = {user: ("due", 1) for user in ("bob", "carol", "dora")}
    until("the password is refused", lambda: states(first) == once)
    problems = {one["last"]["problem"] for one in deliveries(client, first).values()}
    assert problems == {"the mail server refuses the user or password (5xx)"}, problems
    assert not post.mails and ("MAIL", True) not in post.told
    post.password = PASSWORD
    until("the mails are sent after all", lambda: {state for state, _ in states(first).values()} == {"sent"})
    told = deliveries(client, first)
    check(client, post.mails[BOB][0], told["bob"], "Waits for you: refund_payment (demo)")
    check(client, post.mails[CAROL][0], told["carol"], "等待您决定：refund_payment（demo）")
    assert [len(mails) for mails in post.mails.values()] == [1, 1, 1], post.mails

    post.refused = {CAROL: "451 later", DORA: "550 never"}
    second = ask(client, 38)
    expected = {"bob": ("sent", 1), "carol": ("sent", 2), "dora": ("dead", 1)}
    until("one is sent again and one is dead", lambda: states(second) == expected)
    told = deliveries(client, second)
    assert told["dora"]["last"]["problem"] == "the mail server refuses the mail (5xx)"
    check(client, post.mails[CAROL][1], told["carol"], "等待您决定：refund_payment（demo）")
    assert [len(post.mails[one]) for one in (BOB, CAROL, DORA)] == [2, 2, 1]
    plain = {word for word, sealed in post.told if not sealed}
    assert plain == {"EHLO"}, f"without TLS it was told {plain}"


def main(binary: str, demo: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Failed handshakes and passwords without TLS are expected here, so they are not logged.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    ours, foreign = trustme.CA(), trustme.CA()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trusted = folder / "authority.pem"
        ours.cert_pem.write_to_path(str(trusted))
        place = Place(folder, binary, Path(demo).read_text(), trusted)
        sound = context(ours, HOST, "localhost")

        post = Post()
        with server(post, tls_context=sound, require_starttls=True) as port:
            with place.serve(f"smtp://{HOST}:{port}") as client:
                refusals_and_success(place, post, client)
                log = place.log.read_text()
            assert "a message is not tried again" in log, log
            proof = base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode()
            for canary in (PASSWORD, proof, "@acme.example", HOST):
                assert canary not in log, log

        post = Post()
        with server(post, ssl_context=sound) as port:
            done = place.ping(f"smtps://localhost:{port}")
            assert done.returncode == 0, done.stderr
            assert post.mails[FROM][0]["Subject"] == "A test of Holdpoint"

        for what, settings in {
            "an unknown authority": {"tls_context": context(foreign, HOST)},
            "another server's name": {"tls_context": context(ours, "mail.acme.example")},
            "no STARTTLS": {"auth_require_tls": False},
        }.items():
            post = Post()
            with server(post, **settings) as port:
                done = place.ping(f"smtp://{HOST}:{port}")
            assert done.returncode == 1, f"{what}: {done.stdout}"
            expected = "does not offer STARTTLS" if what == "no STARTTLS" else "no secure connection"
            assert expected in done.stderr, done.stderr
            assert {word for word, _ in post.told} == {"EHLO"}, f"{what}: it was told {post.told}"
    print("aiosmtpd: mails arrive by STARTTLS and by TLS, with the right password, at servers that can be trusted")


if __name__ == "__main__":
    main(*sys.argv[1:])
