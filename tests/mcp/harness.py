"""A harness: a folder with a configuration, a fake MCP server, and the built service, which is driven over HTTP."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

sys.path.append(str(Path(__file__).parents[1] / "support"))
from ports import free_port  # noqa: E402

BINARY = os.environ["MCP_SERVICE"]
HERE = Path(__file__).parent
KEY = "alice-key-0123456789"
LIMIT = 30  # seconds, for each wait


def until(what: str, found: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """Polls `found` until its value is true, and returns the value."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.01)
    return value


def tool(name: str, description: str = "Adds a line to a ledger.", **members: object) -> dict:
    """Returns the definition of a tool. Its arguments are any object with a `key`."""
    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    return {"name": name, "description": description, "inputSchema": schema, **members}


class Peer:
    """A server of tests/mcp/servers. If `web`, the test starts it and the service reaches it over HTTP. Otherwise the
    service starts it as a child process."""

    def __init__(self, folder: Path, revision: str, web: bool, sse: bool = False, tools: list[dict] | None = None) -> None:
        self.folder, self.revision, self.web, self.sse = folder, revision, web, sse
        self.folder.mkdir()
        self.process: subprocess.Popen | None = None
        self.port = free_port() if web else 0
        self.define(tools or [tool("add")])

    def define(self, tools: list[dict]) -> None:
        self.write("tools.json", tools)

    def plan(self, **plan: object) -> None:
        self.write("plan.json", {name.replace("__", "/"): value for name, value in plan.items()})

    def write(self, name: str, value: object) -> None:
        beside = self.folder / f"{name}.new"
        beside.write_text(json.dumps(value))
        beside.rename(self.folder / name)

    def go(self) -> None:
        (self.folder / "go").touch()

    def ledger(self, at: str | None = None) -> list[dict]:
        path = self.folder / "ledger"
        text = path.read_text() if path.exists() else ""
        # The server may be writing: a line that crosses a page of memory is seen in part.
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [line for line in map(json.loads, lines) if at is None or line["at"] == at]

    def settings(self) -> dict:
        if self.web:
            return {"url": f"http://127.0.0.1:{self.port}/mcp"}
        program = [sys.executable, "-BS", str(HERE / "servers" / "stdio.py"), str(self.folder), self.revision]
        return {"command": program}

    def start(self) -> None:
        if not self.web:
            return
        program = [sys.executable, "-BS", str(HERE / "servers" / "web.py"), str(self.folder), self.revision]
        arguments = [str(self.port), *(["sse"] if self.sse else [])]
        self.process = subprocess.Popen([*program, *arguments], stderr=subprocess.DEVNULL)
        until("the server listens", self.listens)

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """Kills the running server, as the kernel does when memory runs out."""
        pid = self.ledger("started")[-1]["pid"]
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if self.process:
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


class Place:
    """A configuration whose agent `helper` follows a script. A message is the name of a play, and a play is a list of
    calls that the model then makes in one answer. `policy` is the `decide` of the only rule, which covers all tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: dict[str, dict] = {}
        self.plays: dict[str, list[dict]] = {}
        self.more: dict[str, Any] = {}
        self.offered = ["*"]
        self.decide = "allow"
        self.environment: dict[str, str] = {}

    def play(self, word: str, *calls: tuple[str, object]) -> None:
        self.plays[word] = [{"name": name, "arguments": arguments} for name, arguments in calls]

    def write(self) -> Path:
        script: list[dict] = [
            {"when": {"last": "user", "matches": f"^{word}$"}, "calls": calls} for word, calls in self.plays.items()
        ]
        script += [{"when": {"last": "tool"}, "say": "done"}, {"say": "nothing"}]
        (self.folder / "script.yaml").write_text(json.dumps(script))
        settings = {
            "auth": {"api_keys": [{"user": "alice", "tenant": "acme", "key": KEY, "admin": True}]},
            "models": {"scripted": {"provider": "scripted", "script": "script.yaml"}},
            "mcp": self.servers,
            "agents": {
                "helper": {"description": "Calls.", "model": "scripted", "instructions": "Call.", "tools": self.offered}
            },
            "policy": [{"name": "all", "tools": self.offered, "decide": self.decide}] if self.offered else [],
            **self.more,
        }
        path = self.folder / "holdpoint.yaml"
        path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))
        return path

    def around(self) -> dict[str, str]:
        """Returns the environment of the service, without the caller's own settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDPOINT_")}
        return kept | {"NO_COLOR": "1"} | self.environment

    def run(self, *words: str) -> subprocess.CompletedProcess:
        config = str(self.write())
        return subprocess.run(
            [BINARY, *words, "--config", config], env=self.around(), capture_output=True, text=True, timeout=60
        )

    def lock(self, *words: str) -> str:
        done = self.run("mcp", "lock", "--yes", *words)
        assert done.returncode == 0, f"lock: {done.stdout}{done.stderr}"
        return done.stdout

    def locked(self) -> dict:
        return json.loads((self.folder / "holdpoint.mcp.json").read_text())

    @contextmanager
    def serve(self, failpoints: str = "") -> Iterator["Service"]:
        service = Service(self, failpoints)
        try:
            service.start()
            yield service
        finally:
            service.stop()


class Service:
    def __init__(self, place: Place, failpoints: str = "") -> None:
        self.place, self.failpoints = place, failpoints
        self.process: subprocess.Popen | None = None
        self.port = free_port()
        self.log = place.folder / "service.log"

    def start(self) -> None:
        config = str(self.place.write())
        listen = ["--listen", f"127.0.0.1:{self.port}", "--database-url", f"sqlite://{self.place.folder}/holdpoint.db"]
        environment = self.place.around() | {"HOLDPOINT_FAILPOINTS": self.failpoints}
        with self.log.open("a") as log:
            command = [BINARY, "serve", "--config", config, *listen]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        until("the service is ready", self.is_ready)

    def is_ready(self) -> bool:
        assert self.process and self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def died(self) -> None:
        """Waits until a failpoint has killed the process."""
        assert self.process
        self.process.wait(LIMIT)

    def again(self) -> None:
        """Starts the service again after a kill, without failpoints."""
        self.failpoints = ""
        self.start()

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def ask(
        self, method: str, path: str, body: object = None, wait: int | None = None, key: str | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT * 2)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        if wait is not None:
            headers["Prefer"] = f"wait={wait}" if wait else "respond-async"
        if key is not None:
            headers["Idempotency-Key"] = key
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in (answer.headers.get("Content-Type") or "")
            return answer.status, json.loads(text) if is_json else text.decode()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, body = self.ask("GET", path)
        assert status == 200, (path, status, body)
        return body

    def task(self, word: str, wait: int = LIMIT, key: str | None = None) -> dict:
        """Creates a task, and waits until it no longer runs."""
        status, task = self.ask("POST", "/v1/tasks", {"input": word, "agent": "helper"}, wait, key)
        assert status in (201, 202), (status, task)
        return task

    def settled(self, task: dict) -> dict:
        """Waits until the task has ended or waits for a person. Returns the task."""

        def found() -> dict | None:
            status, now = self.ask("GET", f"/v1/tasks/{task['task_id']}", wait=LIMIT)
            assert status == 200, now
            # Right after a restart, a task whose request was answered is still paused, without a pending request.
            return None if now["status"] == "Running" or (now["status"] == "Paused" and not now["pending"]) else now

        return until("the task ends or asks", found)

    def items(self, task: dict, kind: str) -> list[dict]:
        page = self.get(f"/v1/tasks/{task['task_id']}/items?limit=200")
        return [item for item in page["items"] if item["type"] == kind]

    def outcomes(self, task: dict) -> list[tuple[str, str]]:
        """Returns the outcome and the content of each call. Sorts them in the model's order, because an invalid call
        ends before the others."""
        results = sorted(self.items(task, "tool_result"), key=lambda item: item["tool_call_id"])
        return [(item["outcome"], item["content"]) for item in results]

    def pending(self, task: dict) -> list[dict]:
        return self.get(f"/v1/tasks/{task['task_id']}")["pending"]

    def approve(self, request: dict, wait: int = LIMIT) -> tuple[int, Any]:
        body = {"digest": request["digest"]} if request.get("digest") else {}
        return self.ask("POST", f"/resume/{request['request_id']}/approve", body, wait)

    def respond(self, request: dict, result: str) -> tuple[int, Any]:
        body = {"action": "respond", "result": result}
        return self.ask("POST", f"/resume/{request['request_id']}", body, LIMIT)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdpoint-mcp-") as name:
        yield Path(name)


def at_once(cases: dict[str, Callable[[], object]], threads: int = 3) -> None:
    """Runs the cases in several threads. Prints each failed case, and exits with 1 if a case failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    only = os.environ.get("MCP_ONLY", "")
    chosen = {name: case for name, case in cases.items() if only in name}
    failed: list[str] = []
    writing = threading.Lock()

    def run(name: str) -> None:
        began = time.monotonic()
        try:
            case_says = chosen[name]() or ""
        except BaseException as error:  # noqa: BLE001
            with writing:
                failed.append(name)
                place = error.__traceback__
                while place and place.tb_next:
                    place = place.tb_next
                line = place.tb_lineno if place else 0
                words = f"{type(error).__name__} (line {line}): {error}"
                print(f"  FAILED {name}: {words[:4000]}", file=sys.stderr, flush=True)
        else:
            if os.environ.get("MCP_VERBOSE"):
                print(f"  {name}: {time.monotonic() - began:.1f} s {case_says}", flush=True)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, chosen))
    topic = Path(sys.argv[0]).stem
    print(f"{topic}: {len(chosen) - len(failed)} of {len(chosen)} cases hold", flush=True)
    if failed:
        sys.exit(1)
