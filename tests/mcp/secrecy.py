"""Tests secrets that a server learns: from headers, from the environment and the arguments of a child process, and from
client credentials. The server repeats them in a result, an error, an HTTP answer, a definition or on standard error.
They reach neither the journal, the database, the log, the metrics, a page, the lock file nor the output of a
command."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from harness import KEY, Peer, Place, Service, at_once, folder, tool

CANARIES = {
    name: f"canary-{name.lower()}-5c1e0d7a9b3f" for name in ("HEADER", "ENVIRONMENT", "ARGUMENT", "CLIENT", "TOKEN")
}
OTHER = "canary-other-7d20c4e1aa91"  # in the service's environment, but not in the configuration


def everywhere(place: Place, service: Service, task: dict, said: str) -> str:
    """Returns everything that a person, an operator or a thief of the disk can read."""
    paths = ["/metrics", "/v1/requests?status=pending", f"/v1/tasks/{task['task_id']}", "/v1/tasks", "/v1/me"]
    paths += [f"/v1/tasks/{task['task_id']}/items?limit=200", "/v1/agents"]
    texts = [said] + [str(service.ask("GET", path)[1]) for path in paths]
    for request in task["pending"]:
        texts.append(str(service.ask("GET", f"/resume/{request['request_id']}")[1]))
    files = [path for path in place.folder.iterdir() if path.is_file() and path.name not in ("script.yaml",)]
    texts += [path.read_bytes().decode("utf-8", "replace") for path in files]
    return "\n".join(texts)


def is_secret(place: Place, service: Service, task: dict, said: str = "", but: tuple[str, ...] = ()) -> None:
    text = everywhere(place, service, task, said)
    for name, canary in {**CANARIES, "OTHER": OTHER}.items():
        where = text.find(canary)
        assert where < 0 or name in but, f"{name}: …{text[max(0, where - 200) : where + 60]}…"


def words(canary: str) -> list[dict]:
    """Returns the answers of a server that repeats a secret: results and errors, one for each call."""
    return [
        {"result": {"content": [{"type": "text", "text": f"I know {canary}."}]}},
        {"result": {"content": [{"type": "text", "text": f"I know {canary}."}], "isError": True}},
        {"result": {"content": [], "structuredContent": {"known": [canary], canary: 1}}},
        {"result": {"content": [{"type": "resource_link", "uri": f"https://x.example/?{canary}", "name": canary}]}},
        {"result": {"content": [{"type": canary}]}},
        {"error": {"code": -32602, "message": f"bad {canary}"}},
        {"error": {"code": -32603, "message": f"bad {canary}"}},
    ]


def place_of(name: Path) -> Place:
    place = Place(Path(name))
    place.environment = CANARIES | {"OTHER": OTHER}
    place.play("call", ("s_add", {"key": "1"}))
    return place


def all_words(place: Place, peer: Peer, canary: str) -> None:
    said = words(canary)
    peer.plan(stderr=canary, add=said)
    with place.serve() as service:
        for _ in said:
            task = service.task("call")
            assert service.outcomes(task), task
            assert canary not in str(service.outcomes(task)), service.outcomes(task)
            is_secret(place, service, task)


def in_headers(web: bool = True) -> None:
    with folder() as name:
        peer = Peer(name / "peer", "2025-11-25", web)
        peer.start()
        place = place_of(name)
        place.servers = {"s": peer.settings() | {"headers": {"Authorization": "Bearer ${HEADER}"}}}
        try:
            said = place.lock()
            assert CANARIES["HEADER"] not in said
            sent = peer.ledger("listed")[-1]["headers"]
            sent = {key.lower(): value for key, value in sent.items()}
            assert sent["authorization"] == f"Bearer {CANARIES['HEADER']}", sent
            all_words(place, peer, CANARIES["HEADER"])
            statuses(place, peer, CANARIES["HEADER"])
            assert KEY not in str(peer.ledger()), "the caller's own key reached the server"
        finally:
            peer.stop()


def statuses(place: Place, peer: Peer, canary: str) -> None:
    """The server answers with HTTP errors that quote the header."""
    for status in (400, 401, 403, 429, 500, 503):
        peer.plan(status={"tools/call": [status, f"No: Bearer {canary}"]})
        with place.serve() as service:
            task = service.task("call")
            ((outcome, content),) = service.outcomes(task)
            assert outcome == "failed", (status, outcome, content)
            is_secret(place, service, task)
    peer.plan(status={"tools/list": [403, f"No: Bearer {canary}"], "initialize": [403, canary]})
    done = place.run("mcp", "lock", "--yes")
    assert done.returncode != 0 and canary not in done.stdout + done.stderr, done


def in_the_environment() -> None:
    with folder() as name:
        peer = Peer(name / "peer", "2026-07-28", web=False)
        place = place_of(name)
        settings = peer.settings()
        settings["command"] += ["--token=${ARGUMENT}"]
        place.servers = {"s": settings | {"env": {"TOKEN_OF_MINE": "${ENVIRONMENT}"}}}
        said = place.lock()
        (environment,) = [line["environment"] for line in peer.ledger("started")]
        # Python itself adds `LC_CTYPE`.
        environment.pop("LC_CTYPE", None)
        assert environment == {"TOKEN_OF_MINE": CANARIES["ENVIRONMENT"]}, environment
        assert not [canary for canary in CANARIES.values() if canary in said], said
        all_words(place, peer, CANARIES["ENVIRONMENT"])
        all_words(place, peer, CANARIES["ARGUMENT"])


def list_of_names() -> None:
    """A list of names in `env` passes on these variables and no others."""
    with folder() as name:
        peer = Peer(name / "peer", "2025-11-25", web=False)
        place = place_of(name)
        place.environment |= {"SHOWN": "yes"}
        place.servers = {"s": peer.settings() | {"env": ["SHOWN"]}}
        place.lock()
        (environment,) = [line["environment"] for line in peer.ledger("started")]
        environment.pop("LC_CTYPE", None)
        assert environment == {"SHOWN": "yes"}, environment


def in_a_definition() -> None:
    """A server writes the secret into a description. The lock file, which is kept under version control, must not
    contain it."""
    with folder() as name:
        canary = CANARIES["ENVIRONMENT"]
        bad = tool("add", f"Adds. {canary}", annotations={"title": canary})
        peer = Peer(name / "peer", "2025-11-25", web=False, tools=[bad])
        place = place_of(name)
        place.servers = {"s": peer.settings() | {"env": {"TOKEN_OF_MINE": "${ENVIRONMENT}"}}}
        done = place.run("mcp", "lock", "--yes")
        assert canary not in done.stdout + done.stderr, done.stdout + done.stderr
        file = place.folder / "holdpoint.mcp.json"
        assert not file.exists() or canary not in file.read_text(), file.read_text()


def cannot_start() -> None:
    """The command names a program that does not exist, that ends at once, or that does not speak MCP."""
    with folder() as name:
        for at, command in enumerate((["/nowhere/to/be/found"], ["/bin/false"], ["/bin/echo"], ["/bin/cat"])):
            below = name / str(at)
            below.mkdir()
            place = place_of(below)
            settings = {"command": [*command, "${ARGUMENT}"], "env": {"TOKEN_OF_MINE": "${ENVIRONMENT}"}, "timeout": "2s"}
            place.servers = {"s": settings}
            done = place.run("mcp", "lock", "--yes")
            assert done.returncode != 0, done
            said = done.stdout + done.stderr
            assert not [canary for canary in CANARIES.values() if canary in said], said


class Endpoint(BaseHTTPRequestHandler):
    """A token endpoint. `words` is the body of its next answers."""

    status, words = 200, ""
    heard: list[str] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        Endpoint.heard.append(f"{self.headers.get('Authorization')} {body}")
        answer = Endpoint.words.encode()
        self.send_response(Endpoint.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def in_client_credentials() -> None:
    with folder() as name:
        endpoint = HTTPServer(("127.0.0.1", 0), Endpoint)
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        peer = Peer(name / "peer", "2025-11-25", web=True)
        peer.start()
        place = place_of(name)
        oauth = {"token_url": f"http://127.0.0.1:{endpoint.server_port}/token", "client_id": "holdpoint"}
        place.servers = {"s": peer.settings() | {"oauth": oauth | {"client_secret": "${CLIENT}", "scopes": ["a", "b"]}}}
        Endpoint.words = json.dumps({"access_token": CANARIES["TOKEN"], "token_type": "Bearer", "expires_in": 3600})
        try:
            said = place.lock()
            assert not [canary for canary in CANARIES.values() if canary in said], said
            sent = {key.lower(): value for key, value in peer.ledger("listed")[-1]["headers"].items()}
            assert sent["authorization"] == f"Bearer {CANARIES['TOKEN']}", sent
            assert "grant_type=client_credentials" in Endpoint.heard[-1] and "scope=a+b" in Endpoint.heard[-1].replace("%20", "+")
            all_words(place, peer, CANARIES["TOKEN"])
            Endpoint.status, Endpoint.words = 401, json.dumps({"error": "invalid_client", "error_description": CANARIES["CLIENT"]})
            with place.serve() as service:
                task = service.task("call")
                assert service.outcomes(task)[0][0] == "failed", service.outcomes(task)
                is_secret(place, service, task)
            done = place.run("mcp", "lock", "--yes")
            assert done.returncode != 0 and CANARIES["CLIENT"] not in done.stdout + done.stderr, done
        finally:
            peer.stop()
            endpoint.shutdown()
            endpoint.server_close()


if __name__ == "__main__":
    at_once(
        {
            "headers": in_headers,
            "environment and arguments": in_the_environment,
            "a list of names": list_of_names,
            "a definition": in_a_definition,
            "programs that cannot start": cannot_start,
            "client credentials": in_client_credentials,
        }
    )
