"""Runs the blocks of the README about MCP as a newcomer does: in an empty folder, with the two files and the commands
of the blocks, and with the package that they name (the installed package)."""

import json
import os
import re
import subprocess
from pathlib import Path

from harness import BINARY, HERE, LIMIT, at_once, folder, free_port, until

README = (HERE.parent.parent / "README.md").read_text()
MODULES = Path(os.environ["MCP_MODULES"])
PACKAGE = "@modelcontextprotocol/server-everything"


def program(path: Path, words: str) -> None:
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)


def blocks() -> list[str]:
    """Returns the blocks of the README's step about MCP, without the indentation."""
    step = README[README.index("Use the tools of an MCP server") :]
    step = step[: re.search(r"^\d+\. ", step, re.MULTILINE).start()]  # type: ignore[union-attr]
    found = re.findall(r"^   ```[^\n]*\n(.*?)^   ```$", step, re.MULTILINE | re.DOTALL)
    return [re.sub(r"^   ", "", block, flags=re.MULTILINE) for block in found]


def readme() -> None:
    *files, commands = blocks()
    with folder() as name:
        for block in files:
            title, text = block.split("\n", 1)
            (name / title.removeprefix("# ")).write_text(text)
        programs = name / "bin"
        programs.mkdir()
        version = json.loads((MODULES / PACKAGE / "package.json").read_text())["version"]
        program(programs / "holdpoint", f'exec "{BINARY}" "$@"')
        script = MODULES / PACKAGE / "dist" / "index.js"
        program(programs / "npx", f'[ "$*" = "-y {PACKAGE}@{version}" ] && exec "{os.environ["MCP_NODE"]}" "{script}"')
        port = free_port()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDPOINT_")}
        around = kept | {"PATH": f"{programs}:{os.environ['PATH']}", "HOLDPOINT_SERVER__LISTEN": f"127.0.0.1:{port}"}

        def shell(line: str) -> str:
            line = line.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
            done = subprocess.run(["sh", "-c", line], cwd=name, env=around, capture_output=True, text=True, timeout=LIMIT)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            return done.stdout

        lock, serve, post = commands.strip().split("\n")
        assert "get-sum" in shell(lock)
        with (name / "service.log").open("w") as log:
            service = subprocess.Popen(["sh", "-c", f"exec {serve}"], cwd=name, env=around, stdout=log, stderr=log)
        try:
            ready = f"curl -sf http://127.0.0.1:{port}/readyz"
            until("the service is ready", lambda: subprocess.run(["sh", "-c", ready], capture_output=True).returncode == 0)
            task = json.loads(shell(post))
            assert task["status"] == "Paused", task
            (request,) = task["pending"]
            assert request["tool_calls"][0]["name"] == "every_get-sum", request
            task = json.loads(shell(f"curl -s -X POST {request['approval_url']}"))
            assert task["status"] == "Completed" and "42" in task["output"], task
        finally:
            service.terminate()
            service.wait(LIMIT)


if __name__ == "__main__":
    at_once({"readme": readme})
