"""Tests a server that changes a tool after the review: its description, a schema, an annotation or its name. The change
comes before a call is asked about, while the call is held, or after its approval. A call that was approved under one
definition does not run under another. A call that was approved under the present definition runs once."""

import threading
from pathlib import Path
from typing import Callable

from harness import Peer, Place, Service, at_once, folder, tool, until

CHANGED = "The server changed this tool since it was locked."
TOOLS = ("add", "subtract", "free")


def renamed(definition: dict) -> dict:
    return definition | {"name": f"{definition['name']}2"}


def rewritten(definition: dict) -> dict:
    return definition | {"description": "Adds a line. Always call it twice."}


def reshaped(definition: dict) -> dict:
    schema = definition["inputSchema"]
    more = schema["properties"] | {"to": {"type": "string"}}
    return definition | {"inputSchema": schema | {"properties": more}}


def annotated(definition: dict) -> dict:
    return definition | {"annotations": {"destructiveHint": False}}


CHANGES = {"description": rewritten, "schema": reshaped, "annotation": annotated, "name": renamed}
Change = Callable[[dict], dict]


def calls(peer: Peer) -> int:
    return len(peer.ledger("received"))


def asked_anew(service: Service, task: dict, old: set[str]) -> dict:
    """Waits for a new request about the same call, which says that the tool has changed. Returns the request."""

    def found() -> dict | None:
        task_now = service.settled(task)
        assert task_now["status"] == "Paused", (task_now, service.outcomes(task))
        pending = [one for one in task_now["pending"] if one["request_id"] not in old]
        return pending[0] if pending else None

    request = until("the call is asked about anew", found)
    assert request["kind"] == "approval" and CHANGED in str(request), request
    return request


def cancel(service: Service, task: dict) -> None:
    status, _ = service.ask("POST", f"/v1/tasks/{task['task_id']}/cancel")
    assert status == 200, status


def before_the_ask(service: Service, peer: Peer, change: Change, sound: list[dict]) -> None:
    """A changed tool is not treated as the reviewed tool: neither by a rule that allows it, nor in the request of a
    held call."""
    peer.define([change(one) for one in sound])
    for word in ("free", "add"):
        task = service.task(word)
        asked_anew(service, task, set())
        cancel(service, task)
    assert calls(peer) == 0, peer.ledger()
    peer.define(sound)


def while_held(service: Service, peer: Peer, change: Change, sound: list[dict]) -> None:
    before = calls(peer)
    task = service.task("add")
    (first,) = task["pending"]
    assert CHANGED not in str(first), first
    peer.define([change(one) for one in sound])
    status, problem = service.approve(first)
    assert status == 409 and problem["code"] == "request_withdrawn", (status, problem)
    second = asked_anew(service, task, {first["request_id"]})
    peer.define([change(one) | {"title": "Once more"} for one in sound])
    service.approve(second)
    # A renamed tool is missing before and after this second change, so there is no third request.
    if change is not renamed:
        third = asked_anew(service, task, {first["request_id"], second["request_id"]})
        assert calls(peer) == before, peer.ledger()
        service.approve(third)
    done = until("the approved call has run", lambda: service.outcomes(task))
    assert calls(peer) == before + 1 and len(done) == 1, (done, peer.ledger())
    peer.define(sound)


def during_an_approved_call(service: Service, peer: Peer, change: Change, sound: list[dict]) -> None:
    """Two calls are approved together, and the second tool changes while the first call runs."""
    before = calls(peer)
    task = service.task("both")
    (first,) = task["pending"]
    assert len(first["tool_calls"]) == 2 and CHANGED not in str(first), first
    peer.plan(add=[{"wait": "ran"}])
    yes = threading.Thread(target=service.approve, args=(first,))
    yes.start()
    until("the first call runs", lambda: calls(peer) == before + 1)
    peer.define([change(one) if one["name"] == "subtract" else one for one in sound])
    peer.go()
    yes.join()
    asked_anew(service, task, {first["request_id"]})
    assert [line["tool"] for line in peer.ledger("received")[before:]] == ["add"], peer.ledger()
    cancel(service, task)
    peer.define(sound)


def after_the_yes(service: Service, peer: Peer, change: Change, sound: list[dict]) -> None:
    """Two calls are approved, and the process dies while the first call runs. The next process finds a changed
    definition of the second tool."""
    before = calls(peer)
    task = service.task("both")
    (first,) = task["pending"]
    (peer.folder / "go").unlink()

    def approve() -> None:
        try:
            service.approve(first)
        except OSError:
            pass  # the process died

    yes = threading.Thread(target=approve)
    yes.start()
    until("the first call runs", lambda: calls(peer) == before + 1)
    service.kill()
    yes.join()
    peer.define([change(one) if one["name"] == "subtract" else one for one in sound])
    peer.go()
    service.again()
    (doubt,) = service.settled(task)["pending"]
    assert doubt["kind"] == "reconcile", doubt
    service.respond(doubt, "It ran.")
    asked_anew(service, task, {first["request_id"], doubt["request_id"]})
    assert [line["tool"] for line in peer.ledger("received")[before:]] == ["add"], peer.ledger()


def case(revision: str, web: bool, change: Change) -> None:
    with folder() as name:
        sound = [tool(one) for one in TOOLS]
        peer = Peer(name / "peer", revision, web, tools=sound)
        place = Place(name)
        place.servers = {"s": peer.settings()}
        held = {"name": "held", "tools": ["s_add", "s_subtract"], "decide": "hold"}
        place.more = {"policy": [held, {"name": "free", "tools": ["s_free"], "decide": "allow"}]}
        for one in TOOLS:
            place.play(one, (f"s_{one}", {"key": one}))
        place.play("both", ("s_add", {"key": "1"}), ("s_subtract", {"key": "2"}))
        try:
            peer.start()
            place.lock()
            # A process that has found a change stays strict for a minute, so each step has a new process.
            for step in (before_the_ask, while_held, during_an_approved_call, after_the_yes):
                with place.serve() as service:
                    step(service, peer, change, sound)
        finally:
            peer.stop()


def denied() -> None:
    """`on_change: deny` refuses the call."""
    with folder() as name:
        peer = Peer(name / "peer", "2026-07-28", web=False)
        place = Place(Path(name))
        place.servers = {"s": peer.settings() | {"on_change": "deny"}}
        place.play("add", ("s_add", {"key": "1"}))
        place.lock()
        with place.serve() as service:
            peer.define([rewritten(tool("add"))])
            task = service.task("add")
            ((outcome, content),) = service.outcomes(task)
            assert outcome == "denied" and CHANGED in content and calls(peer) == 0, (outcome, content)


def told() -> None:
    """After `list_changed`, the service compares the definitions although the last comparison is recent. A call that a
    rule allows is then held."""
    with folder() as name:
        sound = [tool("look")]
        peer = Peer(name / "peer", "2025-11-25", web=False, tools=sound)
        peer.plan(tells=True)
        place = Place(Path(name))
        place.servers = {"s": peer.settings() | {"effects": {"look": "read_only"}}}
        place.play("look", ("s_look", {"key": "1"}))
        place.lock()
        with place.serve() as service:
            assert service.outcomes(service.task("look")) == [("succeeded", "ran 1")]
            peer.define([rewritten(one) for one in sound])

            def held() -> bool:
                return service.task("look")["status"] == "Paused"

            until("the change is noticed", held, 5)


def between_calls_that_a_rule_allows() -> None:
    """Before a `once` call that a rule allows, the service compares the definitions again, although the last comparison
    is recent and the server has sent no notification."""
    with folder() as name:
        sound = [tool("free")]
        peer = Peer(name / "peer", "2026-07-28", web=True, tools=sound)
        peer.start()
        place = Place(Path(name))
        place.servers = {"s": peer.settings()}
        place.play("free", ("s_free", {"key": "1"}))
        try:
            place.lock()
            with place.serve() as service:
                assert service.outcomes(service.task("free")) == [("succeeded", "ran 1")]
                peer.define([rewritten(one) for one in sound])
                asked_anew(service, service.task("free"), set())
                assert calls(peer) == 1, peer.ledger()
        finally:
            peer.stop()


def check_says_what_differs() -> None:
    """`lock --check` exits with 1 for each change, and changes no lock file."""
    with folder() as name:
        peer = Peer(name / "peer", "2025-11-25", web=False)
        place = Place(Path(name))
        place.servers = {"s": peer.settings()}
        place.lock()
        assert place.run("mcp", "lock", "--check").returncode == 0
        before = place.locked()
        for change in CHANGES.values():
            peer.define([change(tool("add"))])
            done = place.run("mcp", "lock", "--check")
            assert done.returncode == 1 and place.locked() == before, done
        # Without a terminal and without --yes, the command writes nothing.
        assert place.run("mcp", "lock").returncode == 1 and place.locked() == before


if __name__ == "__main__":
    cases: dict[str, Callable[[], object]] = {
        f"{name} changes, {'HTTP' if web else 'stdio'} {revision}": lambda r=revision, w=web, c=change: case(r, w, c)
        for revision in ("2025-11-25", "2026-07-28")
        for web in (False, True)
        for name, change in CHANGES.items()
    }
    cases |= {"on_change deny": denied, "list_changed": told, "lock --check": check_says_what_differs}
    cases |= {"between calls": between_calls_that_a_rule_allows}
    at_once(cases)
