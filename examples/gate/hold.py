"""Asks a gate of Holdpoint before a tool runs. Needs nothing but Python; copy it into your agent."""

import json
import os
import time
import urllib.request
import uuid

URL = os.environ.get("HOLDPOINT_URL", "http://127.0.0.1:8080")
RUNNER = uuid.uuid4().hex  # this process: it alone gets a permit again whose answer was lost


class Refused(Exception):
    """The call must not run; the text is for the model."""


def post(path: str, body: dict, headers: dict) -> dict:
    headers = {"Authorization": f"Bearer {os.environ['HOLDPOINT_KEY']}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:  # an error status raises: nothing runs
        return json.load(answer)


def hold(tool: str, args: dict, key: str, wait: float = 600) -> dict:
    """Returns the arguments to run with, or raises. The key names this call: the same key is the same call."""
    end = time.monotonic() + wait
    while True:
        asked = time.monotonic()
        headers = {"Idempotency-Key": key, "Holdpoint-Runner": RUNNER, "Prefer": "wait=45"}
        call = post("/v1/gate/calls", {"tool": tool, "arguments": args, "attach": True}, headers)
        told, result = call["message"], call["result"]
        if result:  # of a person, or of a tool that Holdpoint runs
            told = f"The call has its result: {result['content']}"
        if call["decision"] == "allow":
            permit = call["permit"]
            if permit is None or time.monotonic() - asked > permit["expires_in_ms"] / 1000:
                raise Refused(told if result else f"The call has already run, or its permit is over. {told}")
            return json.loads(call["arguments_text"])
        if call["decision"] == "deny" or time.monotonic() > end:
            raise Refused(told)
        time.sleep(1)


def guarded(tool: str, args: dict, key: str, run) -> str:
    """Runs `run(args)` if the gate allows it, reports its outcome, and returns its text."""
    try:
        args = hold(tool, args, key)
    except Refused as refused:
        return f"Not run: {refused}"
    try:
        content, outcome = str(run(args)), "succeeded"
    except Exception as error:  # it may have had an effect: a person is asked
        content, outcome = repr(error), "unknown"
    post("/v1/gate/outcomes", {"key": key, "outcome": outcome, "content": content}, {})
    return content
