"""A gate with tools of a fake server, the clients that call the gate, and the person who decides."""

import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from harness import KEY, Peer, Place, Service, folder, tool, until

HERE = Path(__file__).parent
CLIENTS = Path(os.environ["GATE_CLIENTS"])
MODULES = CLIENTS / "node" / "node_modules"
NODE = os.environ["MCP_NODE"]
AGENT = "agent-key-0123456789"
SHAPE = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
SHAPED = {"content": [{"type": "text", "text": '{"sum": 3}'}], "structuredContent": {"sum": 3}}
LISTED = ["quick", "held", "shaped", "forbidden"]


class Gate:
    def __init__(self, service: Service, peer: Peer) -> None:
        self.service, self.peer = service, peer
        self.url = f"http://127.0.0.1:{service.port}/mcp/tools"

    def drive(
        self, kind: str, call: list | None = None, wait: int | None = 2, timeout: float | None = 3, **more: object
    ) -> dict:
        """Calls the tool with a client. Returns how the client reports the reply. The key `call[1]["key"]` is unique to
        the test. Without `wait`, the gate waits as long as it is configured. Without `timeout`, the client has its own
        default."""
        headers = {"Authorization": f"Bearer {AGENT}"}
        if wait is not None:
            headers["Prefer"] = f"wait={wait}"
        if call:  # Each test has its own session, so that open requests of other tests do not count.
            headers["Holdpoint-Session"] = call[1]["key"].replace(" ", "_")
        ask = {"kind": kind, "url": self.url, "headers": headers, "timeout": timeout, "call": call, **more}
        if kind in ("sdk", "client", "ai_sdk"):
            words = [NODE, str(HERE / "driver.mjs"), str(CLIENTS / "node")]
        else:
            room = "langchain" if kind == "langchain" else "python"
            words = [str(CLIENTS / room / "bin" / "python"), str(HERE / "driver.py")]
            bridge = MODULES / "mcp-remote" / "dist" / "proxy.js"
            ask["bridge"] = [NODE, str(bridge)]
        home = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"NO_COLOR": "1"}
        done = subprocess.run([*words, json.dumps(ask)], env=home, capture_output=True, text=True, timeout=120)
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and lines, done.stderr[-3000:]
        return json.loads(lines[-1])

    def request(self, key: str) -> dict:
        """Waits for the open request about the call with this key, and returns it."""

        def found() -> dict | None:
            page = self.service.get("/v1/requests?status=pending&limit=100")
            return next((one for one in page["requests"] if f'"{key}"' in json.dumps(one).replace("\\", "")), None)

        return until(f"a person is asked about {key}", found)

    def approve(self, key: str) -> None:
        status, body = self.service.approve(self.request(key), wait=0)
        assert status < 300, body

    def reject(self, key: str, reason: str) -> None:
        path = f"/resume/{self.request(key)['request_id']}"
        status, body = self.service.ask("POST", path, {"action": "reject", "reason": reason}, 0)
        assert status < 300, body

    def approves_after(self, seconds: float, key: str) -> threading.Thread:
        """Starts a thread that approves the call `seconds` after the request about it was opened."""

        def approve() -> None:
            self.request(key)
            time.sleep(seconds)
            self.approve(key)

        thread = threading.Thread(target=approve)
        thread.start()
        return thread

    def ran(self, key: str) -> int:
        return sum((line["arguments"] or {}).get("key") == key for line in self.peer.ledger("ran"))


@contextmanager
def gate() -> Iterator[Gate]:
    """Serves a gate. Its tools `quick`, `held`, `shaped` and `forbidden` belong to a fake server."""
    with folder() as name:
        shaped = tool("shaped", outputSchema=SHAPE)
        peer = Peer(name / "peer", "2026-07-28", web=True, tools=[*map(tool, ("quick", "held", "forbidden")), shaped])
        peer.plan(shaped=[{"result": SHAPED}])
        peer.start()
        place = Place(name)
        place.servers = {"fake": {**peer.settings(), "prefix": ""}}
        agent = {"user": "agent", "tenant": "acme", "key": AGENT, "may": ["gate"]}
        person = {"user": "alice", "tenant": "acme", "groups": ["ops"], "key": KEY, "admin": True}
        ops = {"decide": "hold", "approvers": {"groups": ["ops"]}}
        place.more = {
            "auth": {"api_keys": [agent, person]},
            "gates": {"tools": {"description": "Tools.", "tools": LISTED, "max_open": 100}},
            "policy": [
                {"name": "quick", "tools": ["quick"], "decide": "allow"},
                {"name": "held", "tools": ["held", "shaped"], **ops},
                {"name": "never", "tools": ["forbidden"], "decide": "deny", "reason": "Not this one."},
            ],
        }
        try:
            place.lock()
            with place.serve() as service:
                yield Gate(service, peer)
        finally:
            peer.stop()


def is_held(said: dict) -> None:
    assert "HELD." in said.get("text", ""), said


def has(said: dict, text: str) -> dict[str, Any]:
    assert text in said.get("text", ""), said
    return said
