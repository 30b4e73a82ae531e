"""The client that the official conformance suite tests. The suite runs this program with the address of a server. An
operator locks the server's tools, and an agent of the built service makes the calls that the scenario expects."""

import json
import os
import sys
import urllib.request
from pathlib import Path

from harness import Place, folder

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
# The service offers these tools to no agent, but a model may call them nevertheless.
UNFIT = ["empty_header", "object_header", "array_header", "null_header", "duplicate_same_case", "duplicate_diff_case"]
UNFIT += ["space_in_name", "colon_in_name", "non_ascii_name", "control_char_name"]


def fetched(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
        return json.load(answer)


def settings(url: str) -> dict:
    """Returns the server's settings as an operator would write them. For client credentials, the operator looks up the
    token endpoint."""
    server: dict = {"url": url, "prefix": "", "timeout": "5s"}
    if "client_secret" in CONTEXT:
        origin, path = url.rsplit("/", 1)
        resource = fetched(f"{origin}/.well-known/oauth-protected-resource/{path}")
        issuer = resource["authorization_servers"][0]
        endpoint = fetched(f"{issuer}/.well-known/oauth-authorization-server")["token_endpoint"]
        known = {name: CONTEXT[name] for name in ("client_id", "client_secret")}
        server["oauth"] = {"token_url": endpoint, "resource": resource["resource"], **known}
    return server


def calls(locked: dict) -> list[tuple[str, object]]:
    """Returns the calls that the scenario expects."""
    if "toolCalls" in CONTEXT:
        # No schema of this scenario accepts null. An absent member has the same effect: no header.
        given = [(call["name"], call["arguments"]) for call in CONTEXT["toolCalls"]]
        return [(name, {key: value for key, value in all.items() if value is not None}) for name, all in given]
    if SCENARIO == "tools_call":
        return [("add_numbers", {"a": 2, "b": 3})]
    if SCENARIO == "http-invalid-tool-headers":
        return [("valid_tool", {"region": "here"}), *((f"invalid_{name}", {"value": "x"}) for name in UNFIT)]
    if SCENARIO == "json-schema-2020-12-preservation":
        seen = locked["json_schema_2020_12_tool"]["definition"]["inputSchema"]
        return [("json_schema_echo", {"schema": seen})]
    return [(name, {}) for name in locked if name != "lookup_user"]


def main(url: str) -> None:
    with folder() as name:
        place = Place(Path(name))
        place.servers = {"suite": settings(url)}
        print(place.lock())
        locked = place.locked()["servers"]["suite"]["tools"]
        place.offered = sorted(locked)
        wanted = calls(locked)
        if not wanted:
            return
        place.play("go", *wanted)
        with place.serve() as service:
            task = service.task("go")
            while task["status"] == "Paused":
                (request,) = task["pending"]
                assert request["kind"] == "elicitation", request
                filled = {name: True for name in request["form"]["properties"]}
                body = {"action": "respond", "response": filled}
                status, task = service.ask("POST", f"/resume/{request['request_id']}", body, 30)
                assert status == 200, task
            for outcome, content in service.outcomes(task):
                print(outcome, content)
            assert task["status"] == "Completed", task


if __name__ == "__main__":
    main(sys.argv[1])
