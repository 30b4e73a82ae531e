"""Runs the server part of MCP's official conformance suite against a gate of the built service. conformance.txt lists
the checks that fail, with the reasons. The run fails if another check fails, or if a listed check succeeds or is in no
revision of the suite."""

import json
import os
import subprocess
import sys
from pathlib import Path

from harness import Peer, Place, Service, at_once, folder, tool

HERE = Path(__file__).parent
NODE = os.environ["MCP_NODE"]
SUITE = f"{os.environ['MCP_MODULES']}/@modelcontextprotocol/conformance/dist/index.js"
REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": SOUND, "mimeType": "audio/wav"}


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def resource(uri: str, kind: str, words: str) -> dict:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": words}}


MIXED = [text("Multiple content types test:"), IMAGE, resource("test://mixed", "application/json", '{"a":1}')]
ANSWERS = {
    "test_simple_text": {"content": [text("This is a simple text response for testing.")]},
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [AUDIO]},
    "test_embedded_resource": {"content": [resource("test://embedded-resource", "text/plain", "This is embedded.")]},
    "test_multiple_content_types": {"content": MIXED},
    "test_error_handling": {"content": [text("This tool intentionally returns an error for testing")], "isError": True},
}
ADDRESS = {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}}}
SCHEMA_2020 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "allOf": [{"anyOf": [{"required": ["name"]}, {"required": ["address"]}]}],
    "if": {"required": ["name"]},
    "then": {"required": ["name"]},
    "else": {"required": ["address"]},
    "additionalProperties": False,
}
HEADERS = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def definitions() -> list[dict]:
    none = {"inputSchema": {"type": "object", "properties": {}}, "annotations": {"readOnlyHint": True}}
    listed = [tool(name, f"Answers for {name}.", **none) for name in ANSWERS]
    return [
        *listed,
        tool("json_schema_2020_12_tool", inputSchema=SCHEMA_2020),
        tool("test_custom_headers", inputSchema=HEADERS),
    ]


def listed() -> set[str]:
    """Returns the lines of conformance.txt, which have the form `scenario / check`."""
    lines = (HERE / "conformance.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def run(service: Service, revision: str, unseen: set[str]) -> str:
    """Compares the failed checks with the listed ones, and removes the checks that it has seen from `unseen`."""
    url = f"http://127.0.0.1:{service.port}/mcp/suite"
    command = [NODE, SUITE, "server", "--url", url, "--suite", "all", "--spec-version", revision, "--timeout", "10000"]
    with folder() as results:
        command += ["--output-dir", str(results)]
        environment = os.environ | {"NO_COLOR": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        seen, failed, passed = set(), set(), 0
        for path in results.glob("*/checks.json"):
            scenario = path.parent.name.removeprefix("server-").rsplit("-", 6)[0]
            for check in json.loads(path.read_text()):
                if check["status"] not in ("SUCCESS", "FAILURE", "WARNING"):
                    continue
                seen.add(f"{scenario} / {check['id']}")
                passed += check["status"] == "SUCCESS"
                if check["status"] != "SUCCESS":
                    failed.add(f"{scenario} / {check['id']}")
                    if os.environ.get("MCP_VERBOSE"):
                        print(revision, scenario, check["id"], check["status"], check.get("errorMessage"))
    marks = listed() & seen
    unseen.difference_update(seen)
    assert passed > 10, done.stdout[-2000:] + done.stderr[-2000:]
    new, gone = sorted(failed - marks), sorted(marks - failed)
    assert not new and not gone, f"fail, and are not listed: {new}; are listed, and pass: {gone}"
    return f"{passed} checks pass, {len(failed)} fail as listed"


def main() -> None:
    with folder() as name:
        place = Place(name)
        peer = Peer(name / "peer", "2026-07-28", web=True, tools=definitions())
        peer.plan(**{name: [{"result": answer}] for name, answer in ANSWERS.items()})
        peer.start()
        try:
            place.servers = {"suite": {**peer.settings(), "prefix": "", "trust_annotations": True}}
            gate = {"description": "The tools of the suite.", "tools": ["*"]}
            place.more = {"auth": None, "gates": {"suite": gate}}
            print(place.lock()) if os.environ.get("MCP_VERBOSE") else place.lock()
            unseen = listed()
            with place.serve() as service:
                cases = {revision: lambda revision=revision: run(service, revision, unseen) for revision in REVISIONS}
                at_once(cases, threads=2)
            # MCP_ONLY may have chosen only some of the revisions.
            if unseen and not os.environ.get("MCP_ONLY"):
                sys.exit(f"listed, and in no revision of the suite: {sorted(unseen)}")
        finally:
            peer.stop()


if __name__ == "__main__":
    main()
