"""Runs the client part of MCP's official conformance suite against the built service, in each revision.
conformance.yaml lists the checks that fail, with the reasons. The run fails if another check fails, or if a listed
check succeeds."""

import os
import subprocess
import sys

from harness import HERE, at_once

NODE = os.environ["MCP_NODE"]
MODULES = os.environ["MCP_MODULES"]
SUITE = f"{MODULES}/@modelcontextprotocol/conformance/dist/index.js"
OLD, MIDDLE, NEW = "2025-06-18", "2025-11-25", "2026-07-28"
# The suite's other scenarios need a browser and a person who signs in (auth/…), keys that are bound to a token
# (auth/dpop…), or resources and skills, which are not tools. Extensions belong to no revision.
SCENARIOS = [
    *(("initialize", revision) for revision in (OLD, MIDDLE)),
    *(("tools_call", revision) for revision in (OLD, MIDDLE, NEW)),
    *(("json-schema-2020-12-preservation", revision) for revision in (MIDDLE, NEW)),
    ("request-metadata", NEW),
    ("http-standard-headers", NEW),
    ("http-custom-headers", NEW),
    ("http-invalid-tool-headers", NEW),
    ("json-schema-ref-no-deref", NEW),
    ("sep-2322-client-request-state", NEW),
    ("elicitation-sep1034-client-defaults", MIDDLE),
    ("sse-retry", MIDDLE),
    ("auth/client-credentials-basic", None),
    ("auth/client-credentials-jwt", None),
]


def scenario(name: str, revision: str | None) -> None:
    command = [NODE, SUITE, "client", "--scenario", name, "--command", f"{sys.executable} {HERE}/conformance_client.py"]
    command += ["--expected-failures", str(HERE / "conformance.yaml")]
    command += ["--spec-version", revision] if revision else []
    environment = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "SKIPPED: scenario" not in said, said


if __name__ == "__main__":
    at_once(
        {
            f"{name} {revision or ''}".strip(): lambda name=name, revision=revision: scenario(name, revision)
            for name, revision in SCENARIOS
        }
    )
