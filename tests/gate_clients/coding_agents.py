"""Tests Claude Code and Codex at a gate. Each case runs the real program; its model follows a script.

The commands of the model add a line to the file `ran`."""

import json
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Iterator

from coding_agent_runs import AGENTS, GO, HELP, SHELL, Agent, Claude, Codex, Gate, beside, gate, note
from fake_model import Call, Step
from harness import Peer, at_once, folder, free_port, tool, until

GRACE = 8  # seconds that a hook may last beyond its wait
START = 10  # seconds that a coding agent needs for everything but the hook


def approved(at: Gate, agent: Agent, mark: str) -> None:
    """A person approves after 3 s. The command runs once. The model gets the output, and the journal gets the
    outcome."""
    with at.run(agent, [[agent.shell(note(mark))]]) as run:

        def approve() -> None:
            at.question(mark)
            time.sleep(3)
            assert run.ran == 0
            tasks.append(at.decide(mark, "approve")["task_id"])

        tasks: list[str] = []
        with beside(approve):
            run.go()
        assert run.ran == 1, run.output
        run.has_told(mark)
        reports = at.reports(tasks[0])
        assert mark in reports and '"succeeded"' in reports, reports


def own_permission(at: Gate, agent: Claude, mark: str) -> None:
    """If a person approves a call, Claude Code needs no permission of its own. If a rule allows a call, it does."""
    steps: list[Step] = [[agent.shell(note(mark))], [agent.shell(f"cat ran; echo {mark}-2 >> ran")]]
    with at.run(agent, steps, permissions=[]) as run, beside(lambda: at.decide(mark, "approve")):
        run.go()
        assert run.ran == 1, run.output
        run.has_told("needs approval")


def rejected(at: Gate, agent: Agent, mark: str) -> None:
    with at.run(agent, [[agent.shell(note(mark))]]) as run:
        with beside(lambda: at.decide(mark, "reject", reason="Not on a Friday.")):
            run.go()
        run.has_told("Not on a Friday.")
        assert run.ran == 0


def denied(at: Gate, agent: Agent, mark: str) -> None:
    with at.run(agent, [[agent.shell(note(mark) + " # forbidden")]]) as run:
        run.go()
        run.has_told("Not this one.")
        assert run.ran == 0


def allowed(at: Gate, agent: Agent, mark: str) -> None:
    with at.run(agent, [[agent.shell(f"cat given; {note(mark)}")]]) as run:
        (run.project / "given").write_text("What was given.\n")
        run.go()
        run.has_told("What was given.")
        assert run.ran == 1 and not at.questions(mark)


def edited(at: Gate, agent: Agent, mark: str) -> None:
    with at.run(agent, [[agent.shell(note(mark))]]) as run:
        changed = {"command": note("changed")}
        with beside(lambda: at.decide(mark, "edit", arguments=changed)):
            run.go()
        if agent.edits:
            run.has_told("changed")
            assert (run.project / "ran").read_text() == "changed\n"
        else:
            run.has_told("A person changed the arguments. Make the call with these instead")
            assert run.ran == 0


def answered(at: Gate, agent: Agent, mark: str) -> None:
    """A person responds with results, one of them empty, so the commands do not run. The hook denies the calls with the
    results as reasons. Codex would run a call that is denied without a reason."""
    with at.run(agent, [[agent.shell(note(mark + "-1"))], [agent.shell(note(mark + "-2"))]]) as run:

        def respond() -> None:
            at.decide(mark + "-1", "respond", result="It was done by hand.")
            at.decide(mark + "-2", "respond", result="")

        with beside(respond):
            run.go()
        run.has_told("It was done by hand.")
        assert run.ran == 0, run.told()


def asked_again(at: Gate, agent: Agent, mark: str) -> None:
    """The hook's wait ends without a decision. The model goes on, and repeats the call after the approval."""

    def again(told: list[str]) -> list[Call]:
        assert "Make the same call again" in told[0] and "http://" in told[0], told
        at.decide(mark, "approve")
        return [agent.shell(note(mark))]

    with at.run(agent, [[agent.shell(note(mark))], again, [agent.shell("cat ran")]], wait="2s") as run:
        run.go()
        assert run.ran == 1, run.told()
        run.has_told(mark)


def two_at_once(at: Gate, agent: Agent, mark: str) -> None:
    marks = [f"{mark}-{number}" for number in range(2)]
    with at.run(agent, [[agent.shell(note(one)) for one in marks]]) as run:

        def decide() -> None:
            at.decide(marks[0], "approve")
            at.decide(marks[1], "reject", reason="One is enough.")

        with beside(decide):
            run.go()
        run.has_told("One is enough.")
        assert run.ran == 1, run.output


def writes(at: Gate, agent: Agent, mark: str) -> None:
    """The hook asks about the tool that writes files, as it does about the shell."""
    with at.run(agent, []) as run:
        made, other = run.project / "made", run.project / "other"
        run.model.plays[GO] = [[agent.write(made, f"{mark}-1")], [agent.write(other, f"{mark}-2")]]

        def decide() -> None:
            asked = at.decide(f"{mark}-1", "approve")
            assert asked["tool_calls"][0]["name"] == agent.write_tool, asked
            at.decide(f"{mark}-2", "reject", reason="No second file.")

        with beside(decide):
            run.go()
        run.has_told("No second file.")
        assert made.read_text() == f"{mark}-1\n" and not other.exists(), run.output


def mcp(at: Gate, agent: Agent, mark: str) -> None:
    """The hook asks about tools of MCP servers that the coding agent itself calls."""
    with folder() as place:
        peer = Peer(place / "peer", "2025-11-25", web=False, tools=[tool("add")])
        command, *arguments = peer.settings()["command"]
        servers = {"fake": {"command": command, "args": arguments}}
        calls: list[Step] = [[agent.ask_mcp(f"{mark}-{number}")] for number in range(2)]
        with at.run(agent, calls, servers=servers) as run:

            def decide() -> None:
                asked = at.decide(f"{mark}-0", "approve")
                assert asked["tool_calls"][0]["name"] == "mcp__fake__add", asked
                at.decide(f"{mark}-1", "reject", reason="No second call.")

            with beside(decide):
                run.go()
            run.has_told("No second call.")
            assert [line["arguments"]["key"] for line in peer.ledger("ran")] == [f"{mark}-0"], run.told()


def sub_agent(at: Gate, agent: Agent, mark: str) -> None:
    with at.run(agent, [], [[agent.shell(note(f"{mark}-1"))]]) as run:

        def after_help(told: list[str]) -> list[Call]:
            until("the helper is told", lambda: run.told(HELP))
            return []

        run.model.plays[GO] = [[agent.delegate(f"{HELP} {mark}-0")], after_help]

        def decide() -> None:
            at.decide(f"{mark}-0", "approve")
            at.decide(f"{mark}-1", "reject", reason="Not for a helper.")

        with beside(decide):
            run.go()
        run.has_told("Not for a helper.", HELP)
        assert run.ran == 0
@contextmanager
def broken_service(kind: str) -> Iterator[str]:
    """Returns the address of a broken service: it is `off`, answers `500` or `garbage`, or `hangs`."""
    released = threading.Event()

    class Broken(BaseHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

        def do_POST(self) -> None:
            if kind == "hangs":
                released.wait()
                return
            self.send_response(500 if kind == "500" else 200)
            self.end_headers()
            self.wfile.write(b'{"decision": "allow"}')

    if kind == "off":
        yield f"http://127.0.0.1:{free_port()}"
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def broken(at: Gate, agent: Agent, mark: str, kind: str) -> None:
    with broken_service(kind) as url, at.run(agent, [[agent.shell(note(mark))]], url=url, wait="2s") as run:
        began = time.monotonic()
        run.go()
        took = time.monotonic() - began
        run.has_told("Holdpoint blocks this call")
        assert run.ran == 0 and took < 2 + GRACE + START, took


def service_off(at: Gate, agent: Agent, mark: str) -> None:
    broken(at, agent, mark, "off")


def service_fails(at: Gate, agent: Agent, mark: str) -> None:
    broken(at, agent, mark, "500")


def service_hangs(at: Gate, agent: Agent, mark: str) -> None:
    broken(at, agent, mark, "hangs")


def service_garbles(at: Gate, agent: Agent, mark: str) -> None:
    broken(at, agent, mark, "garbage")


def hook_missing(at: Gate, agent: Agent, mark: str) -> None:
    with at.run(agent, [[agent.shell(note(mark))]], installed=False) as run:
        run.go()
        run.has_told("The hook has no answer, so the call is blocked.")
        assert run.ran == 0


def hook_killed(at: Gate, agent: Agent, mark: str) -> None:
    with at.run(agent, [[agent.shell(note(mark))]]) as run:

        def kill() -> None:
            at.question(mark)
            run.kill_hook()

        with beside(kill):
            run.go()
        run.has_told("The hook has no answer, so the call is blocked.")
        assert run.ran == 0


def shell_killed(at: Gate, agent: Agent, mark: str) -> None:
    """The hook and its shell are killed, so neither can block the call. Claude Code blocks the call by `onFailure`;
    Codex runs it."""
    with at.run(agent, [[agent.shell(note(mark))]]) as run:

        def kill() -> None:
            at.question(mark)
            run.kill_hook(with_shell=True)

        with beside(kill):
            run.go()
        assert run.ran == (0 if agent.has_on_failure else 1), run.told()


def exit_code(at: Gate, agent: Agent, mark: str) -> None:
    """The gate learns from Claude Code that a command failed. Codex does not tell its hooks of failures."""
    tasks: list[str] = []
    with at.run(agent, [[agent.shell(f"echo {mark} >> ran; exit 3")]]) as run:
        with beside(lambda: tasks.append(at.decide(mark, "approve")["task_id"])):
            run.go()
        assert run.ran == 1
        outcome = "failed" if agent.has_failures else "succeeded"
        assert f'"{outcome}"' in at.reports(tasks[0]), at.reports(tasks[0])


def untrusted(at: Gate, agent: Codex, mark: str) -> None:
    """Codex skips a hook that the user has not trusted, without a message. So the call runs."""
    with at.run(agent, [[agent.shell(note(mark))]], trusted=False) as run:
        run.go()
        assert run.ran == 1 and not at.questions(mark), run.output


def typed(at: Gate, agent: Codex, mark: str, options: list[str]) -> int:
    """Returns how often a command ran that the model typed into an approved shell."""

    def type_line(line: str) -> Step:
        def calls(told: list[str]) -> list[Call]:
            session = re.search(r"session ID (\d+)", told[0])
            return [("write_stdin", {"session_id": int(session[1]), "chars": line + "\n"})] if session else []

        return calls

    shell = agent.shell(f"bash -i # {mark}-1", tty=True, yield_time_ms=1000)
    with at.run(agent, [[shell], type_line(note(mark)), type_line("exit")], options=options) as run:
        with beside(lambda: at.decide(f"{mark}-1", "approve")):
            run.go()
        return run.ran


def typed_text(at: Gate, agent: Codex, mark: str) -> None:
    """The hook of Codex asks about a shell, but not about text that the model types into the shell later. Without
    terminals, no text can be typed."""
    assert typed(at, agent, mark, []) == 1
    assert typed(at, agent, f"{mark}-off", ["--disable", "unified_exec_tty"]) == 0


def other_folder(at: Gate, agent: Codex, mark: str) -> None:
    """The working folder is shown to people, but is no argument of the call. So a late approval also holds for an equal
    call in another folder."""
    with at.run(agent, [], wait="2s") as run:
        other = run.place / "other"
        other.mkdir()

        def again(told: list[str]) -> list[Call]:
            at.decide(mark, "approve")
            return [agent.shell(note(mark), workdir=str(other))]

        run.model.plays[GO] = [[agent.shell(note(mark))], again]
        run.go()
        assert run.ran == 0 and (other / "ran").read_text() == f"{mark}\n", run.told()


def described(at: Gate, agent: Claude, mark: str) -> None:
    """The tool `Bash` of docs/gate.md declares every argument that Claude Code may send."""
    with at.run(agent, []) as run:
        run.go()
        sent = set(run.model.offered["Bash"]["properties"])
        assert sent <= set(SHELL), sent


def cases(at: Gate) -> dict:
    claude, codex = AGENTS
    every = [approved, rejected, denied, allowed, edited, answered, asked_again, two_at_once, writes, mcp, sub_agent]
    every += [service_off, service_fails, service_hangs, service_garbles]
    every += [hook_missing, hook_killed, shell_killed, exit_code]
    chosen = [(case, agent) for case in every for agent in AGENTS]
    chosen += [(own_permission, claude), (described, claude), (untrusted, codex), (typed_text, codex), (other_folder, codex)]
    named = {f"{case.__name__} {agent.name}": (case, agent) for case, agent in chosen}
    return {
        name: lambda name=name, case=case, agent=agent: case(at, agent, name.replace(" ", "-"))
        for name, (case, agent) in named.items()
    }


if __name__ == "__main__":
    with gate() as here:
        at_once(cases(here), threads=2)
