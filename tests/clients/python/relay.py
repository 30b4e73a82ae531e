"""Tests mails through a real mail relay: Debian's Exim, run without privileges. The relay takes the service's mails by
STARTTLS with a password, defers a mail, and refuses a mail. It delivers the others into a maildir, where Python's own
parser of mails finds them complete. Arguments: the binary, the demonstration's configuration, and the folder of the
unpacked packages of Exim."""

import email
import email.policy
import mailbox
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Iterator

import trustme

from mail import BOB, CAROL, FROM, HOST, PASSWORD, USER, Place, ask, check, deliveries, free_port, until

CONFIGURATION = Path(__file__).parent.parent / "exim.conf"
# A script that runs as root starts Exim as the user `nobody`.
NOBODY = 65534
SUBJECTS = {"bob": "Waits for you: refund_payment (demo)", "carol": "等待您决定：refund_payment（demo）"}


class Relay:
    """Exim in a folder of its own."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.is_root = os.geteuid() == 0
        self.uid, self.gid = (NOBODY, NOBODY) if self.is_root else (os.geteuid(), os.getegid())
        # Copies the packages, because their folder may be readable only to its owner.
        shutil.copytree(packages / "usr", folder / "usr", symlinks=True)
        self.program = folder / "usr/sbin/exim4"

    def prepare(self, authority: trustme.CA) -> None:
        """Writes the configuration, and every file that the configuration names."""
        certificate = authority.issue_cert(HOST)
        certificate.private_key_pem.write_to_path(str(self.folder / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(self.folder / "certificate.pem"))
        macros = {
            "UID": self.uid,
            "GID": self.gid,
            "PROGRAM": self.program,
            "FOLDER": self.folder,
            "PORT": self.port,
            "USER": USER,
            "PASSWORD": PASSWORD,
        }
        text = "".join(f"RELAY_{name} = {value}\n" for name, value in macros.items())
        (self.folder / "exim.conf").write_text(text + CONFIGURATION.read_text())
        # Exim looks for the user that Debian's package creates. The package is not installed, so this file declares the user.
        (self.folder / "passwd").write_text(f"Debian-exim:x:{self.uid}:{self.gid}::/:/bin/false\n")
        (self.folder / "greylisted").touch()
        (self.folder / "group").write_text(f"Debian-exim:x:{self.gid}:\n")
        for path in [self.folder, *self.folder.rglob("*")]:
            if self.is_root and not path.is_symlink():
                os.chown(path, self.uid, self.gid)

    def command(self, *arguments: str) -> dict:
        libraries = next((self.folder / "usr/lib").glob("*/libnss_wrapper.so")).parent
        variables = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(libraries),
            "LD_PRELOAD": str(libraries / "libnss_wrapper.so"),
            "NSS_WRAPPER_PASSWD": str(self.folder / "passwd"),
            "NSS_WRAPPER_GROUP": str(self.folder / "group"),
        }
        who = {"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_root else {}
        arguments = [str(self.program), "-C", str(self.folder / "exim.conf"), *arguments]
        return {"args": arguments, "env": variables, "cwd": self.folder, **who}

    @contextmanager
    def serve(self) -> Iterator[None]:
        said = self.folder / "output"
        with said.open("w") as output:
            process = subprocess.Popen(**self.command("-bdf"), stdout=output, stderr=output)

        def ready() -> bool:
            assert process.poll() is None, f"Exim has ended: {said.read_text()}{self.log()}"
            return "daemon started" in self.log()

        try:
            until("Exim is ready", ready)
            yield
        finally:
            process.terminate()
            process.wait()

    def log(self) -> str:
        logs = sorted(self.folder.glob("*log"))
        return "".join(log.read_text() for log in logs)

    def mails(self, person: str) -> list[EmailMessage]:
        """Returns the mails that the relay has delivered to a person."""
        folder = self.folder / "mail" / person
        if not folder.exists():
            return []
        box = mailbox.Maildir(folder, factory=None, create=False)
        return [email.message_from_bytes(box.get_bytes(key), policy=email.policy.default) for key in box.keys()]


def main(binary: str, demo: str, packages: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    authority = trustme.CA()
    with tempfile.TemporaryDirectory() as name:
        # The relay's user may enter the folder, but not list it.
        os.chmod(name, 0o711)
        own, relayed = Path(name) / "service", Path(name) / "relay"
        own.mkdir()
        relayed.mkdir()
        trusted = own / "authority.pem"
        authority.cert_pem.write_to_path(str(trusted))
        place = Place(own, binary, Path(demo).read_text(), trusted)
        relay = Relay(relayed, Path(packages))
        relay.prepare(authority)
        version = subprocess.run(**relay.command("-bV"), capture_output=True, text=True, timeout=30)
        assert version.returncode == 0, version.stdout + version.stderr
        with relay.serve(), place.serve(f"smtp://{HOST}:{relay.port}") as client:
            request = ask(client, 41)

            def states() -> dict[str, tuple[str, int]]:
                return {user: (one["state"], one["attempts"]) for user, one in deliveries(client, request).items()}

            # carol is greylisted once, and dora is not known to the relay.
            expected = {"bob": ("sent", 1), "carol": ("sent", 2), "dora": ("dead", 1)}
            until("one is taken, one deferred, one refused", lambda: states() == expected)
            assert f"temporarily rejected RCPT <{CAROL}>: greylisted" in relay.log(), relay.log()
            problem = deliveries(client, request)["dora"]["last"]["problem"]
            assert problem == "the mail server refuses the mail (5xx)", problem
            until("both are delivered", lambda: relay.mails("bob") and relay.mails("carol"))
            told = deliveries(client, request)
            for person, address in {"bob": BOB, "carol": CAROL}.items():
                (mail,) = relay.mails(person)
                check(client, mail, told[person], SUBJECTS[person])
                assert mail["Return-path"] == f"<{FROM}>" and mail["Envelope-to"] == address, mail.items()
                # The mail came over TLS, after a sign-in with the password.
                assert "with esmtpsa (TLS1.3)" in " ".join(mail["Received"].split()), mail["Received"]
            assert PASSWORD not in relay.log()
    print(f"{version.stdout.splitlines()[0]}: it takes, defers, refuses and delivers mails in two languages")


if __name__ == "__main__":
    main(*sys.argv[1:])
