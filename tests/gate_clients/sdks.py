"""Tests calls of the official SDKs for Python and TypeScript at a gate, in the older revisions and in 2026-07-28."""

from gates import LISTED, Gate, gate, has, is_held
from harness import at_once

OLD = [("mcp", "legacy"), ("sdk", ""), ("client", "legacy")]
NEW = [("mcp", "2026-07-28"), ("client", "auto")]


def name_of(what: str, kind: str, mode: str) -> str:
    return f"{what} {kind} {mode}".strip()


def listed(at: Gate, kind: str, mode: str, key: str) -> None:
    assert at.drive(kind, mode=mode)["tools"] == LISTED
    said = has(at.drive(kind, ["quick", {"key": key}], mode=mode), "ran")
    assert not said["error"] and at.ran(key) == 1, said


def denied(at: Gate, kind: str, mode: str, key: str) -> None:
    said = has(at.drive(kind, ["forbidden", {"key": key}], mode=mode), "Not this one. It has not run.")
    assert said["error"] and at.ran(key) == 0, said


def held_new(at: Gate, kind: str, mode: str, key: str) -> None:
    """The approval comes after 7 s, although the client gives up if an answer takes longer than 3 s."""
    approval = at.approves_after(7, key)
    said = has(at.drive(kind, ["held", {"key": key}], mode=mode), "ran")
    approval.join()
    assert not said["error"] and at.ran(key) == 1, said


def held_old(at: Gate, kind: str, mode: str, key: str) -> None:
    approval = at.approves_after(7, key)
    said = at.drive(kind, ["held", {"key": key}], mode=mode)
    is_held(said)
    assert said["error"], said
    approval.join()
    assert at.ran(key) == 0
    said = has(at.drive(kind, ["held", {"key": key}], mode=mode), "ran")
    assert not said["error"] and at.ran(key) == 1, said


def defaults(at: Gate, kind: str, mode: str, key: str) -> None:
    """The client gives up after its default of 60 s, and the gate waits for its default of 45 s. The approval comes
    after 50 s."""
    approval = at.approves_after(50, key)
    said = at.drive(kind, ["held", {"key": key}], wait=None, timeout=None, mode=mode)
    if (kind, mode) in OLD:
        is_held(said)
        approval.join()
        assert said["error"] and at.ran(key) == 0, said
        said = at.drive(kind, ["held", {"key": key}], mode=mode)
    approval.join()
    has(said, "ran")
    assert not said["error"] and at.ran(key) == 1, said


def legs(at: Gate, kind: str, mode: str, key: str) -> None:
    said = at.drive(kind, ["held", {"key": key}], wait=1, mode=mode)
    is_held(said)
    assert said["error"], said


def shaped(at: Gate, kind: str, mode: str, key: str) -> None:
    said = at.drive(kind, ["shaped", {"key": key}], wait=1, mode=mode)
    is_held(said)
    at.approve(key)
    said = at.drive(kind, ["shaped", {"key": key}], mode=mode)
    assert said.get("structured") == {"sum": 3} and at.ran(key) == 1, said


def rejected(at: Gate, kind: str, mode: str, key: str) -> None:
    is_held(at.drive(kind, ["held", {"key": key}], wait=1, mode=mode))
    at.reject(key, "No money.")
    for _ in range(2):
        has(at.drive(kind, ["held", {"key": key}], mode=mode), "No money. It has not run. Do not try again.")
    assert at.ran(key) == 0


def progress(at: Gate, kind: str, mode: str, key: str) -> None:
    approval = at.approves_after(2, key)
    said = has(at.drive(kind, ["held", {"key": key}], wait=20, timeout=15, progress=True, mode=mode), "ran")
    approval.join()
    assert said["progress"][:1] == ["Waiting for ops to approve."], said


def left(at: Gate, kind: str, mode: str, key: str) -> None:
    """The client cancels its call. An approval then runs nothing until the client asks again."""
    said = at.drive(kind, ["held", {"key": key}], wait=60, timeout=30, leaves=2, mode=mode)
    assert said == {"left": True}, said
    at.approve(key)
    assert at.ran(key) == 0
    has(at.drive(kind, ["held", {"key": key}], mode=mode), "ran")
    assert at.ran(key) == 1


def timed_out(at: Gate, kind: str, mode: str, key: str) -> None:
    said = at.drive(kind, ["held", {"key": key}], wait=60, timeout=2, mode=mode)
    assert "thrown" in said, said
    at.approve(key)
    assert at.ran(key) == 0
    has(at.drive(kind, ["held", {"key": key}], mode=mode), "ran")
    assert at.ran(key) == 1


def cases(at: Gate) -> dict:
    every = [listed, denied, shaped, progress, left, timed_out]
    # The client for Python has no default timeout. These cases take a minute each, so they come first: the others run
    # beside them.
    chosen = [(defaults, *client) for client in [*OLD, *NEW] if client[0] != "mcp"]
    chosen += [(case, *client) for case in [held_new, legs] for client in NEW]
    chosen += [(case, *client) for case in [held_old, rejected] for client in OLD]
    chosen += [(case, *client) for case in every for client in [*OLD, *NEW]]
    named = {name_of(case.__name__, kind, mode): (case, kind, mode) for case, kind, mode in chosen}
    return {
        name: lambda name=name, case=case, kind=kind, mode=mode: case(at, kind, mode, name)
        for name, (case, kind, mode) in named.items()
    }


if __name__ == "__main__":
    with gate() as here:
        at_once(cases(here), threads=5)
