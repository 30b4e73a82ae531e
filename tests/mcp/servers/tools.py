"""The tools of the fake servers, in revision 2025-11-25 (with `initialize`) or 2026-07-28 (stateless). The folder holds
three files. `tools.json` has the definitions and is read for each list. `plan.json` says how each call goes and is read
for each call. `ledger` has a line for each of `listed`, `received`, `ran` and `answered`; the server goes on only after
the line is written."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Callable

NAME = {"name": "ledger-server", "version": "1.0.0"}


class Tools:
    def __init__(self, folder: str, revision: str) -> None:
        self.folder, self.revision = Path(folder), revision
        self.stateless = revision >= "2026"
        self.ledger = os.open(self.folder / "ledger", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.quiet = (self.folder / "quiet").exists()  # for measurements
        self.calls: dict[str, int] = {}
        self.lock = threading.Lock()
        for line in self.told():
            if line["at"] == "received":
                self.calls[line["tool"]] = self.calls.get(line["tool"], 0) + 1

    def told(self) -> list[dict]:
        text = (self.folder / "ledger").read_bytes()
        whole = text.rfind(b"\n") + 1
        os.ftruncate(self.ledger, whole)  # an earlier server may have been killed inside a line
        return [json.loads(line) for line in text[:whole].splitlines()]

    def note(self, at: str, **facts: object) -> None:
        if self.quiet:
            return
        line = json.dumps({"at": at, "pid": os.getpid(), "time": time.time(), **facts})
        os.write(self.ledger, f"{line}\n".encode())
        os.fsync(self.ledger)

    def read(self, name: str) -> dict | list:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else {}

    def answer(self, message: dict, text: str, headers: dict, half: Callable[[str], None]) -> str | None:
        """Returns the text of the answer to a message; None for a notification. `half` sends only half of a text."""
        method, identity = message.get("method"), message.get("id")
        if identity is None:
            return None
        if method == "tools/call":
            body = self.call(message, text, headers, half)
        elif method == "tools/list":
            plan = self.read("plan.json").get("tools/list", {})
            body = {"error": plan["error"]} if "error" in plan else {"result": {"tools": self.read("tools.json")}}
            self.note("listed", headers=headers)
        elif method == "initialize" and not self.stateless:
            features = {"tools": {"listChanged": True}}
            body = {"result": {"protocolVersion": self.revision, "capabilities": features, "serverInfo": NAME}}
        elif method == "server/discover" and self.stateless:
            features = {"supportedVersions": [self.revision], "capabilities": {"tools": {}}, "serverInfo": NAME}
            body = {"result": features}
        elif method == "ping" and not self.stateless:
            body = {"result": {}}
        else:
            body = {"error": {"code": -32601, "message": f"Method not found: {method}"}}
        if "result" in body and self.stateless:
            body["result"].setdefault("resultType", "complete")
            if method in ("tools/list", "server/discover"):
                body["result"] |= {"ttlMs": 60000, "cacheScope": "private"}
        return json.dumps({"jsonrpc": "2.0", "id": identity, **body}, ensure_ascii=False)

    def call(self, message: dict, text: str, headers: dict, half: Callable[[str], None]) -> dict:
        params = message["params"]
        tool, state = params["name"], params.get("requestState")
        with self.lock:
            number = self.calls[tool] = self.calls.get(tool, 0) + 1
        facts = {"tool": tool, "arguments": params.get("arguments"), "id": message["id"], "text": text}
        self.note("received", headers=headers, **facts)
        steps = self.read("plan.json").get(tool) or [{}]
        step = steps[min(number, len(steps)) - 1]
        self.reach("received", step)
        if step.get("legs", 0) > int(state or 0):
            return {"result": {"resultType": "input_required", "requestState": str(int(state or 0) + 1)}}
        if "error" in step:
            return {"error": step["error"]}
        if "asks" in step:
            return {"result": {"resultType": "input_required", "inputRequests": step["asks"], "requestState": "7"}}
        self.note("ran", **facts)
        self.reach("ran", step)
        time.sleep(step.get("seconds", 0))
        if "die" in step:  # only `half` is left: `reach` handles the other points
            half(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}))
            os.kill(os.getpid(), signal.SIGKILL)
        self.note("answered", tool=tool, id=message["id"])
        return {"result": step.get("result") or {"content": [{"type": "text", "text": f"ran {number}"}]}}

    def reach(self, point: str, step: dict) -> None:
        """If the plan says so for this point of a call, dies or waits for the file `go`."""
        if step.get("wait") == point:
            while not (self.folder / "go").exists():
                time.sleep(0.005)
        if step.get("die") == point:
            os.kill(os.getpid(), signal.SIGKILL)
