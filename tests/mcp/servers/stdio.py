"""Serves over standard input and output. Each line is a message. Arguments: the folder, the revision."""

import json
import os
import sys
import threading
import time

from tools import Tools

tools = Tools(*sys.argv[1:3])
writing = threading.Lock()


def write(text: str) -> None:
    with writing:
        sys.stdout.write(text)
        sys.stdout.flush()


def serve(line: str) -> None:
    answer = tools.answer(json.loads(line), line, {}, lambda text: write(text[: len(text) // 2]))
    if answer is not None:
        write(answer + "\n")


def watch() -> None:
    """Sends a `list_changed` notification of revision 2025-11-25 each time `tools.json` has changed."""
    path = tools.folder / "tools.json"
    seen = path.stat().st_mtime_ns
    while True:
        time.sleep(0.02)
        if path.exists() and path.stat().st_mtime_ns != seen:
            seen = path.stat().st_mtime_ns
            write(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}) + "\n")


tools.note("started", environment=dict(os.environ))
words = tools.read("plan.json").get("stderr")
if words:
    sys.stderr.write(words * 100 + "\n")
    sys.stderr.flush()
if tools.read("plan.json").get("tells"):
    threading.Thread(target=watch, daemon=True).start()
for line in sys.stdin:
    threading.Thread(target=serve, args=(line,), daemon=True).start()
tools.note("ended")
