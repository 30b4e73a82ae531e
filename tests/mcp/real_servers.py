"""Tests servers of other projects: server-everything (over both transports) and server-filesystem of npm,
mcp-server-time and mcp-server-fetch of PyPI. Their tools are locked and called. The cases cover texts, images,
structured content, errors, a long operation, a time limit, and `kill -9` in the middle of a call."""

import os
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Iterator

from harness import Place, Service, at_once, folder, free_port, until

NODE = os.environ["MCP_NODE"]
SERVERS = f"{os.environ['MCP_MODULES']}/@modelcontextprotocol"
PYTHON = os.environ["MCP_PYTHON"]
EVERYTHING = [NODE, f"{SERVERS}/server-everything/dist/index.js"]
LONG = "trigger-long-running-operation"


def place_of(name: Path, servers: dict[str, dict]) -> Place:
    place = Place(name)
    place.servers = servers
    place.lock()
    assert place.run("mcp", "lock", "--check").returncode == 0, "a second listing differs"
    return place


def results(place: Place, calls: list[tuple[str, dict]]) -> list[tuple[str, str]]:
    """Returns the outcomes of these calls. The model makes them in one answer, and the service runs them one after
    another."""
    place.play("go", *calls)
    with place.serve() as service:
        task = service.task("go")
        assert task["status"] == "Completed", (task, service.outcomes(task))
        return service.outcomes(task)


def expect(found: list[tuple[str, str]], *expected: tuple[str, str]) -> None:
    """Asserts that each call has the expected outcome, and that its content matches the expected pattern."""
    assert len(found) == len(expected), found
    for (outcome, content), (word, pattern) in zip(found, expected, strict=True):
        assert outcome == word and re.search(pattern, content, re.DOTALL), (outcome, content, word, pattern)


@contextmanager
def everything_over_http(port: int) -> Iterator[subprocess.Popen]:
    environment = os.environ | {"PORT": str(port)}
    process = subprocess.Popen([*EVERYTHING, "streamableHttp"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until("server-everything listens", lambda: b"listening" in (process.stdout.readline() if process.stdout else b""))
    threading.Thread(target=lambda: process.stdout and process.stdout.read(), daemon=True).start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def contents(place: Place) -> None:
    calls: list[tuple[str, dict]] = [
        ("s_echo", {"message": "héllo"}),
        ("s_get-sum", {"a": 1.5, "b": 2}),
        ("s_get-tiny-image", {}),
        ("s_get-structured-content", {"location": "New York"}),
        ("s_get-annotated-message", {"messageType": "error", "includeImage": True}),
        ("s_get-resource-links", {"count": 2}),
        ("s_get-resource-reference", {}),
        ("s_get-sum", {"a": "x", "b": 2}),
        ("s_get-sum", {"a": 1}),
        (f"s_{LONG}", {"duration": 0.3, "steps": 3}),
    ]
    found = results(place, calls)
    expect(
        found,
        ("succeeded", "Echo: héllo"),
        ("succeeded", "1.5 and 2 is 3.5"),
        ("succeeded", r"image you requested.*\[image/png, .* not shown\]"),
        ("succeeded", '"conditions":"Cloudy"'),
        ("succeeded", r"Operation failed.*\[image/png, .* not shown\]"),
        ("succeeded", "demo://resource/dynamic/text/2"),
        ("succeeded", "Resource 1: This is a plaintext resource"),
        ("invalid", ""),
        ("invalid", ""),
        ("succeeded", r"Duration: 0\.3 seconds, Steps: 3"),
    )
    once = [content for _, content in found if '"conditions":"Cloudy"' in content]
    assert once[0].count("Cloudy") == 1, "structured content that a text repeats is shown once"
    assert "iVBOR" not in str(found), "no image is given as text"


def over_stdio() -> None:
    with folder() as name:
        place = place_of(name, {"s": {"command": [*EVERYTHING, "stdio"]}})
        contents(place)
        # The child prints its whole environment.
        ((outcome, content),) = results(place, [("s_get-env", {})])
        assert outcome == "succeeded" and content.strip() == "{}", content


def over_http() -> None:
    port = free_port()
    with folder() as name, everything_over_http(port):
        contents(place_of(name, {"s": {"url": f"http://127.0.0.1:{port}/mcp"}}))


def is_asked(service: Service, task: dict) -> dict:
    now = service.settled(task)
    assert now["status"] == "Paused", (now, service.outcomes(now))
    (request,) = now["pending"]
    assert request["kind"] == "reconcile", request
    return request


def time_limit() -> None:
    """After the time limit, the call's outcome is unknown and a person is asked. The server goes on serving."""
    with folder() as name:
        place = place_of(name, {"s": {"command": [*EVERYTHING, "stdio"], "timeout": "1s"}})
        place.play("long", (f"s_{LONG}", {"duration": 60, "steps": 1}))
        place.play("echo", ("s_echo", {"message": "still here"}))
        with place.serve() as service:
            request = is_asked(service, service.task("long"))
            expect(service.outcomes(service.task("echo")), ("succeeded", "still here"))
            status, task = service.respond(request, "It ran.")
            assert status == 200 and task["status"] == "Completed", task


def child_of(service: Service) -> int:
    """Returns the id of the server's process, which the service has started under a guard process."""
    assert service.process
    parents, servers = {}, []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid = int(stat.parent.name)
            parents[pid] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            if b"server-everything" in stat.with_name("cmdline").read_bytes():
                servers.append(pid)
        except OSError:
            pass  # it has ended meanwhile
    for pid in servers:
        above = pid
        while above := parents.get(above, 0):
            if above == service.process.pid:
                return pid
    raise AssertionError("the service has no child")


def killed_child() -> None:
    with folder() as name:
        place = place_of(name, {"s": {"command": [*EVERYTHING, "stdio"]}})
        place.play("long", (f"s_{LONG}", {"duration": 60, "steps": 1}))
        place.play("echo", ("s_echo", {"message": "back"}))
        with place.serve() as service:
            expect(service.outcomes(service.task("echo")), ("succeeded", "back"))
            first = child_of(service)
            tasks = [service.task("long", wait=0) for _ in range(2)]
            until("both calls run", lambda: sum(bool(service.items(task, "tool_started")) for task in tasks) == 2)
            time.sleep(0.2)  # until the calls are written: only then are their outcomes unknown
            os.kill(first, signal.SIGKILL)
            for task in tasks:
                status, now = service.respond(is_asked(service, task), "It ran.")
                assert status == 200 and now["status"] == "Completed", now
            expect(service.outcomes(service.task("echo")), ("succeeded", "back"))
            last = child_of(service)
            assert last != first
        assert not Path(f"/proc/{last}").exists(), "a child outlives the service"


def killed_server() -> None:
    port = free_port()
    with folder() as name:
        with everything_over_http(port) as process:
            place = place_of(name, {"s": {"url": f"http://127.0.0.1:{port}/mcp"}})
            place.play("long", (f"s_{LONG}", {"duration": 60, "steps": 1}))
            place.play("echo", ("s_echo", {"message": "back"}))
            service = Service(place)
            service.start()
            task = service.task("long", wait=0)
            until("the call runs", lambda: service.items(task, "tool_started"))
            time.sleep(0.2)  # as above
            process.kill()
            process.wait()
        try:
            request = is_asked(service, task)
            down = service.outcomes(service.task("echo"))
            assert down[0][0] == "failed", down
            with everything_over_http(port):
                expect(service.outcomes(service.task("echo")), ("succeeded", "back"))
            status, _ = service.respond(request, "It ran.")
            assert status == 200
        finally:
            service.stop()


def filesystem() -> None:
    with folder() as name:
        open_to, closed = name / "open", name / "closed"
        for one in (open_to, closed):
            one.mkdir()
        (closed / "secret").write_text("hidden")
        command = [NODE, f"{SERVERS}/server-filesystem/dist/index.js", str(open_to)]
        tools = ["read_*", "write_file", "list_directory"]
        settings = {"command": command, "tools": tools, "prefix": "fs_", "effects": {"read_*": "read_only"}}
        place = place_of(name, {"files": settings})
        file = str(open_to / "note")
        found = results(
            place,
            [
                ("fs_write_file", {"path": file, "content": "wörds"}),
                ("fs_read_text_file", {"path": file}),
                ("fs_list_directory", {"path": str(open_to)}),
                ("fs_read_text_file", {"path": str(closed / "secret")}),
                ("fs_move_file", {"source": file, "destination": f"{file}2"}),
            ],
        )
        expect(
            found,
            ("succeeded", "Successfully wrote"),
            ("succeeded", "^wörds"),
            ("succeeded", "note"),
            ("failed", "Access denied"),
            ("invalid", ""),  # `tools` leaves it out
        )
        assert (open_to / "note").read_text() == "wörds"


class Page(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        text = b"A page of this test."
        self.send_response(200 if self.path == "/page" else 404)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def clock_and_pages() -> None:
    """Runs two Python servers at the same time. One of them fetches a page from loopback."""
    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    with folder() as name:
        options = ["--allow-private-ips", "--ignore-robots-txt"]
        servers = {
            "time": {"command": [PYTHON, "-m", "mcp_server_time"], "trust_annotations": True},
            "web": {"command": [PYTHON, "-m", "mcp_server_fetch", *options], "trust_annotations": True},
        }
        convert = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        found = results(
            place_of(name, servers),
            [
                ("time_convert_time", convert),
                ("time_get_current_time", {"timezone": "Nowhere"}),
                ("web_fetch", {"url": f"{here}/page", "raw": True}),
                ("web_fetch", {"url": f"{here}/nothing", "raw": True}),
            ],
        )
        expect(
            found, ("succeeded", "T21:00:00"), ("failed", "Nowhere"), ("succeeded", "A page of this test"), ("failed", "404")
        )
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    at_once(
        {
            "server-everything over stdio": over_stdio,
            "server-everything over HTTP": over_http,
            "time limit": time_limit,
            "kill -9 of a child": killed_child,
            "kill -9 of a server": killed_server,
            "server-filesystem": filesystem,
            "mcp-server-time and mcp-server-fetch": clock_and_pages,
        }
    )
