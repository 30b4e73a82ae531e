"""Tests CTRLRun, another gateway that asks people: in front of a gate, and as the MCP server that the service calls.
Each gateway decides for itself, and passes the decision of the other gateway on unchanged."""

import json
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from gates import CLIENTS, LISTED, Gate, gate, has, is_held
from harness import Peer, Place, at_once, folder, free_port, tool, until

CTRLRUN = str(CLIENTS / "ctrlrun" / "bin" / "ctrlrun")
LEGACY, NEW = "2025-11-25", "2026-07-28"


class CtrlRun:
    """CTRLRun's gateway in front of the server at `upstream`. `tools` maps each tool to its policy."""

    def __init__(self, place: Path, upstream: str, tools: dict[str, dict]) -> None:
        self.place, self.port = place, free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        place.mkdir()
        actions = {f"mcp.peer.{name}": policy for name, policy in tools.items()}
        (place / "ctrlrun.yaml").write_text(json.dumps({"schema": "ctrlrun.policy/v2", "actions": actions}))
        arguments = ["--upstream", upstream, "--alias", "peer", "--principal", "agent", "--listen", f"127.0.0.1:{self.port}"]
        self.log = place / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([CTRLRUN, "gateway", *arguments], cwd=place, stdout=log, stderr=log)

    def listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "no authority:" in self.log.read_text() and Peer.listens(self)  # type: ignore[arg-type]

    def run(self, *words: str) -> str:
        done = subprocess.run([CTRLRUN, *words], cwd=self.place, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout

    def approve(self, said: str) -> None:
        """Grants the approval that an error of CTRLRun asks for."""
        request = re.search(r"apr_\w+", said)
        assert request, said
        self.run("approve", request[0])


@contextmanager
def ctrlrun(place: Path, upstream: str, **tools: dict) -> Iterator[CtrlRun]:
    running = CtrlRun(place, upstream, tools)
    try:
        until("CTRLRun listens", running.listens)
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def through(at: Gate, peer: CtrlRun) -> Gate:
    """Returns the gate, but with the address of CTRLRun in front of it."""
    found = Gate(at.service, at.peer)
    found.url = peer.url
    return found


def in_front(at: Gate, key: str) -> None:
    with folder() as name, ctrlrun(name / "ctrlrun", at.url, **{tool: {"decision": "allow"} for tool in LISTED}) as peer:
        client = through(at, peer)
        drive = lambda word, **more: client.drive("mcp", [word, {"key": key}], mode="legacy", **more)
        assert client.drive("mcp", mode="legacy")["tools"] == LISTED
        has(drive("quick"), "ran")
        assert at.ran(key) == 1
        said = has(drive("forbidden"), "Not this one. It has not run.")
        assert said["error"] and at.ran(key) == 1, said
        is_held(drive("held", wait=1))
        at.approve(key)
        assert at.ran(key) == 1
        said = has(drive("held"), "ran")
        assert not said["error"] and at.ran(key) == 2, said


def in_front_with_legs(at: Gate, key: str) -> None:
    """A held call takes several HTTP requests. CTRLRun counts them as a single suspended effect, and records its
    end."""
    held = {"decision": "allow", "effect": "held:{key}"}
    with folder() as name, ctrlrun(name / "ctrlrun", at.url, held=held) as peer:
        approval = at.approves_after(5, key)
        said = has(through(at, peer).drive("mcp", ["held", {"key": key}], mode=NEW), "ran")
        approval.join()
        assert not said["error"] and at.ran(key) == 1, said
        assert re.findall(r"mcp\.peer\.held\s+(\S+)", peer.run("receipts"))[-1] == "allow/committed", peer.run("receipts")


def behind(revision: str) -> None:
    """CTRLRun asks its own approver. Until the approval, its error counts as a failed call that has not run. After the
    approval, an equal call runs."""
    decisions = {"free": "allow", "asked": "approve", "never": "deny"}
    with folder() as name:
        server = Peer(name / "server", revision, web=True, tools=[*map(tool, decisions)])
        server.start()
        policies = {tool: {"decision": decision} for tool, decision in decisions.items()}
        try:
            with ctrlrun(name / "ctrlrun", f"http://127.0.0.1:{server.port}/mcp", **policies) as peer:
                place = Place(name)
                place.servers = {"peer": {"url": peer.url, "prefix": ""}}
                place.lock()
                assert place.locked()["servers"]["peer"]["protocol"] == revision
                for word in decisions:
                    place.play(word, (word, {"key": word}))
                with place.serve() as service:
                    calls = lambda word: service.outcomes(service.task(word))
                    ran = lambda: [line["tool"] for line in server.ledger("ran")]
                    assert calls("free") == [("succeeded", "ran 1")]
                    ((outcome, denied),) = calls("never")
                    assert outcome == "failed" and "mcp.peer.never denied" in denied, denied
                    ((outcome, asked),) = calls("asked")
                    assert outcome == "failed" and "mcp.peer.asked requires approval" in asked and ran() == ["free"], asked
                    peer.approve(asked)
                    assert calls("asked") == [("succeeded", "ran 1")] and ran() == ["free", "asked"]
        finally:
            server.stop()


if __name__ == "__main__":
    with gate() as here:
        cases = {f"behind {revision}": lambda revision=revision: behind(revision) for revision in (LEGACY, NEW)}
        for case in (in_front, in_front_with_legs):
            cases[case.__name__] = lambda case=case: case(here, case.__name__)
        at_once(cases)
