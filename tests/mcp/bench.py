"""Measures a call through the service, and the same call of the same server by a bare client, in the same minutes. Also
measures the memory of 20 servers with 50 tools each. docs/performance.md explains the figures. Argument: the number of
calls of each kind (300)."""

import http.client
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Callable

from harness import Peer, Place, Service, folder, tool

REVISION = "2026-07-28"
AT_ONCE = 16


def body(identity: int) -> str:
    meta = {"io.modelcontextprotocol/protocolVersion": REVISION, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": "add", "arguments": {"key": "1"}, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": params})


class Stdio:
    """A client of the child process, without the service."""

    def __init__(self, peer: Peer) -> None:
        self.process = subprocess.Popen(peer.settings()["command"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(body(1) + "\n")
        self.process.stdin.flush()
        assert "ran" in self.process.stdout.readline()

    def per_second(self, calls: int) -> float:
        assert self.process.stdin and self.process.stdout
        began = time.perf_counter()
        for at in range(calls + AT_ONCE):
            if at < calls:
                self.process.stdin.write(body(at) + "\n")
                self.process.stdin.flush()
            if at >= AT_ONCE:
                assert "ran" in self.process.stdout.readline()
        return calls / (time.perf_counter() - began)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Web:
    """A client without the service, which opens a connection for each call, as the service does."""

    def __init__(self, peer: Peer) -> None:
        self.port = peer.port

    def call(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers |= {"MCP-Protocol-Version": REVISION, "Mcp-Method": "tools/call", "Mcp-Name": "add"}
        connection.request("POST", "/mcp", body(1), headers)
        assert b"ran" in connection.getresponse().read()
        connection.close()

    def per_second(self, calls: int) -> float:
        return per_second(calls, self.call)

    def close(self) -> None:
        pass


def milliseconds(calls: int, one: Callable[[], None]) -> list[float]:
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        one()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def through(service: Service, calls: int) -> list[float]:
    """Returns the milliseconds from the judgement of each call to its result, by the times in the journal. They include
    the commit of the start and the call."""
    taken = []
    for _ in range(calls):
        task = service.task("go")
        page = service.get(f"/v1/tasks/{task['task_id']}/items?limit=200")["items"]
        at = {item["type"]: datetime.fromisoformat(item["at"]) for item in page}
        assert task["status"] == "Completed" and service.outcomes(task)[0][0] == "succeeded", task
        taken.append((at["tool_result"] - at["judged"]).total_seconds() * 1000)
    return taken


def per_second(calls: int, one: Callable[[], object]) -> float:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.perf_counter()
        list(pool.map(lambda _: one(), range(calls)))
        return calls / (time.perf_counter() - began)


def line(name: str, taken: list[float], base: list[float]) -> None:
    def p(values: list[float], share: int) -> float:
        return statistics.quantiles(values, n=100)[share - 1]

    more = p(taken, 50) - p(base, 50)
    print(f"  {name:28} p50 {p(taken, 50):6.2f} ms  p99 {p(taken, 99):6.2f} ms  added p50 {more:+6.2f} ms", flush=True)


def calls_of(web: bool, effect: str, calls: int) -> None:
    with folder() as name:
        peer = Peer(name / "peer", REVISION, web)
        (peer.folder / "quiet").touch()
        peer.start()
        place = Place(name)
        place.servers = {"s": peer.settings() | {"effects": {"add": effect}}}
        place.play("go", ("s_add", {"key": "1"}))
        place.lock()
        client = Web(peer) if web else Stdio(peer)
        try:
            with place.serve() as service:
                through(service, 10)
                milliseconds(10, client.call)
                base, taken = [], []
                for _ in range(5):  # interleaved, so that a slow minute affects both
                    base += milliseconds(calls // 5, client.call)
                    taken += through(service, calls // 5)
                print(f"{'HTTP' if web else 'stdio'}, {effect}:")
                line("bare client", base, base)
                line("through the service", taken, base)
                rates = client.per_second(calls), per_second(calls, lambda: service.task("go"))
                print(f"  {AT_ONCE} at once: {rates[0]:.0f} calls/s bare, {rates[1]:.0f} tasks/s through the service", flush=True)
        finally:
            client.close()
            peer.stop()


def resident(pid: int) -> float:
    """Returns the resident memory of a process in MiB."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(text.split()[1]) for text in status if text.startswith("VmRSS")) / 1024


def memory(web: bool) -> None:
    with folder() as name:
        tools = [tool(f"tool{at}", "Adds a line to a ledger. " * 20) for at in range(50)]
        peers = [Peer(name / f"peer{at}", REVISION, web, tools=tools) for at in range(20)]
        place = Place(name)
        place.offered = []
        try:
            with place.serve() as service:
                assert service.process
                without = resident(service.process.pid)
            for at, peer in enumerate(peers):
                peer.start()
                place.servers[f"s{at}"] = peer.settings()
                place.play(f"go{at}", (f"s{at}_tool7", {"key": "1"}))
            place.offered = ["*"]
            place.lock()
            with place.serve() as service:
                assert service.process
                idle = resident(service.process.pid)
                for at in range(len(peers)):
                    task = service.task(f"go{at}")
                    assert task["status"] == "Completed", (task, service.outcomes(task))
                used = resident(service.process.pid)
                for _ in range(5):
                    for at in range(len(peers)):
                        service.task(f"go{at}")
                again = resident(service.process.pid)
            kind = "HTTP" if web else "stdio"
            print(f"20 servers with 50 tools over {kind}: {without:.1f} MiB without, {idle:.1f} MiB started, ", end="")
            print(f"{used:.1f} MiB after a call of each, {again:.1f} MiB after six", flush=True)
        finally:
            for peer in peers:
                peer.stop()


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    for kind in (False, True):
        for effect in ("read_only", "once"):
            calls_of(kind, effect, count)
    for kind in (False, True):
        memory(kind)
