"""Tests a person's whole way with a mail client and a browser, on two replicas and Postgres. A mail arrives at a real
mail server (aiosmtpd). Python's own parser of mails finds the link in it, and Chromium without JavaScript opens the
link. The person approves and sees the result. In between, the replica that opened the request and served the page is
killed. Arguments: the binary, the demonstration's configuration, tests/browser/mailed.js beside its packages, and
Chromium."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import ExitStack, contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Iterator

import httpx
import trustme

from mail import ALICE, BOB, HOST, Place, Post, ask, context, free_port, server, until


def postgres_programs() -> Path | None:
    """Returns the folder of Postgres' programs: the folder of `initdb` in PATH, or the newest folder of Debian's
    packages."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


@contextmanager
def postgres(programs: Path, folder: Path) -> Iterator[str]:
    """Runs a throwaway Postgres. Yields the URL of its database."""
    folder.mkdir()
    # Postgres refuses to run as root.
    who = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    if who:
        shutil.chown(folder, "postgres", "postgres")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    init = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "-D", folder / "data"]
    subprocess.run([programs / "initdb", *init], cwd=folder, check=True, **quiet, **who)
    command = [programs / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses="]
    process = subprocess.Popen(command, cwd=folder, **quiet, **who)
    try:
        ready = [programs / "pg_isready", "--quiet", "--host", folder]
        until("Postgres is ready", lambda: subprocess.run(ready).returncode == 0)
        yield f"postgres://postgres@{str(folder).replace('/', '%2F')}/postgres"
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait()


class Balancer:
    """A load balancer: forwards each connection to the first replica that accepts it."""

    def __init__(self, replicas: list[int]) -> None:
        self.replicas = replicas
        self.used: list[int] = []  # the replica of each connection so far
        self.open: set[socket.socket] = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.forward, args=[client], daemon=True).start()

    def forward(self, client: socket.socket) -> None:
        for port in self.replicas:
            try:
                replica = socket.create_connection(("127.0.0.1", port))
            except OSError:
                continue
            self.used.append(port)
            self.open.add(client)
            back = threading.Thread(target=self.pump, args=[replica, client])
            back.start()
            self.pump(client, replica)
            back.join()
            self.open.discard(client)
            break
        client.close()

    @staticmethod
    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def link_of(mail: EmailMessage) -> str:
    """Returns the link in the mail's text. Asserts that the HTML has the same link."""
    text, html = (part.get_content() for part in mail.iter_parts())
    (link,) = re.findall(r"https?://\S+/l/\S+", text)
    assert f'href="{link}"' in html, html
    return link


class Person:
    """A person with a browser, who has opened a link."""

    def __init__(self, script: str, url: str, chromium: str, link: str) -> None:
        command = ["node", script, url, chromium, link]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def reads(self) -> str:
        """Returns the text of the next page that the person sees."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the browser has ended"
        return json.loads(line)

    def approves(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("approve\n")
        self.process.stdin.flush()


def whole_way(client: httpx.Client, balancer: Balancer, asked: tuple[subprocess.Popen, int], post: Post, browse) -> None:
    """`asked` is the process and the port of the replica that opens the request. `browse` opens a link in a browser."""
    replica, port = asked
    request = ask(client, 42)
    until("the mail arrives", lambda: BOB in post.mails)
    (mail,) = post.mails[BOB]
    assert mail["Subject"] == "Waits for you: refund_payment (demo)" and not mail.defects, mail["Subject"]
    link = link_of(mail)
    assert link.startswith(f"{balancer.url}/l/"), link
    person = browse(link)
    page = person.reads()
    assert "For bob (bob@acme.example)." in page and "Refund 120 for order 42" in page, page
    assert "was started" not in page and set(balancer.used) == {port}, (page, balancer.used)

    replica.kill()
    replica.wait()
    until("the connections to the killed replica end", lambda: not balancer.open)
    before = len(balancer.used)
    person.approves()
    page = person.reads()
    assert "Approved by bob" in page, page
    page = person.reads()
    assert "The result as the agent is told" in page and '"status":"refunded"' in page, page
    assert person.process.wait() == 0 and port not in balancer.used[before:], balancer.used

    key = {"authorization": f"Bearer {ALICE}"}
    get = lambda path: client.get(path, headers=key).json()
    asked_for = get(f"/resume/{request}")
    assert (asked_for["decision"]["by"], asked_for["decision"]["door"]) == ("bob", "link"), asked_for
    task = f"/v1/tasks/{asked_for['task_id']}"
    until("the agent is told", lambda: get(task)["status"] == "Completed")
    assert "120" in get(task)["output"], get(task)
    starts = [item for item in get(f"{task}/items")["items"] if item["type"] == "tool_started" and item["name"] == "refund_payment"]
    assert len(starts) == 1, starts


def main(binary: str, demo: str, script: str, chromium: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    programs = postgres_programs()
    if programs is None:  # the tests then use the server of TEST_DATABASE_URL
        print("from a mail to its result: NOT RUN, because the programs of Postgres are missing")
        return
    authority, post = trustme.CA(), Post()
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        # The user that runs Postgres may enter the folder, but not list it.
        os.chmod(name, 0o711)
        trusted = Path(name) / "authority.pem"
        authority.cert_pem.write_to_path(str(trusted))
        place = Place(Path(name), binary, Path(demo).read_text(), trusted)
        database = running.enter_context(postgres(programs, Path(name) / "postgres"))
        mails = running.enter_context(server(post, tls_context=context(authority, HOST), require_starttls=True))
        ports = [free_port(), free_port()]
        balancer = Balancer(ports)
        replicas = [
            place.process(f"smtp://{HOST}:{mails}", port, database, HOLDPOINT_SERVER__PUBLIC_URL=balancer.url) for port in ports
        ]
        first, _ = map(running.enter_context, replicas)
        client = running.enter_context(httpx.Client(base_url=balancer.url, timeout=30, trust_env=False))

        def browse(link: str) -> Person:
            person = Person(script, balancer.url, chromium, link)
            running.callback(person.process.kill)
            return person

        whole_way(client, balancer, (first, ports[0]), post, browse)
    print("from a mail to its result: by aiosmtpd and Chromium, although a replica was killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
