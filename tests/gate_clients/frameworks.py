"""Tests agent frameworks, the inspector and mcp-remote at a gate: they list its tools, make calls, wait for a person,
and are denied."""

import json
import subprocess

from gates import AGENT, LISTED, MODULES, NODE, Gate, gate, has, is_held
from harness import at_once

KINDS = ["openai_agents", "langchain", "fastmcp", "pydantic_ai", "ai_sdk", "mcp_remote"]
INSPECTOR = MODULES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"


def listed(at: Gate, kind: str, key: str) -> None:
    said = at.drive(kind, timeout=30)
    assert said.get("tools") == LISTED, said
    has(at.drive(kind, ["quick", {"key": key}], timeout=15), "ran")
    assert at.ran(key) == 1


def denied(at: Gate, kind: str, key: str) -> None:
    has(at.drive(kind, ["forbidden", {"key": key}], timeout=15), "Not this one. It has not run.")
    assert at.ran(key) == 0


def held(at: Gate, kind: str, key: str) -> None:
    if kind == "openai_agents":
        # The client's timeout limits the whole call with all its HTTP requests: see `out_of_time`.
        approval = at.approves_after(1, key)
        has(at.drive(kind, ["held", {"key": key}]), "ran")
        approval.join()
        assert at.ran(key) == 1
        return
    is_held(at.drive(kind, ["held", {"key": key}], wait=1, timeout=15))
    at.approve(key)
    assert at.ran(key) == 0
    has(at.drive(kind, ["held", {"key": key}], timeout=15), "ran")
    assert at.ran(key) == 1


def out_of_time(at: Gate, key: str) -> None:
    """The client's default timeout is 5 s. The model gets an error, and the result comes with the next call."""
    said = at.drive("openai_agents", ["held", {"key": key}], wait=60)
    assert "ran" not in said.get("text", ""), said
    at.approve(key)
    assert at.ran(key) == 0
    has(at.drive("openai_agents", ["held", {"key": key}]), "ran")
    assert at.ran(key) == 1


def inspected(at: Gate, key: str) -> None:
    command = [NODE, str(INSPECTOR), "--cli", at.url, "--transport", "http", "--header", f"Authorization: Bearer {AGENT}"]

    def inspector(*words: str) -> dict:
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip().startswith("{"), done.stdout[-1500:] + done.stderr[-1500:]
        return json.loads(done.stdout)

    listed = inspector("--method", "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == LISTED, listed
    called = inspector("--method", "tools/call", "--tool-name", "quick", "--tool-arg", f"key={key}")
    assert "ran" in json.dumps(called) and at.ran(key) == 1, called


def cases(at: Gate) -> dict:
    named = {f"{case.__name__} {kind}": (case, kind) for case in (listed, denied, held) for kind in KINDS}
    all_kinds = {
        name: lambda name=name, case=case, kind=kind: case(at, kind, name) for name, (case, kind) in named.items()
    }
    return all_kinds | {
        "out_of_time": lambda: out_of_time(at, "out_of_time"),
        "inspected": lambda: inspected(at, "inspected"),
    }


if __name__ == "__main__":
    with gate() as here:
        at_once(cases(here), threads=3)
