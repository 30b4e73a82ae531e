"""Plays Bob until the process is ended: approves every open request, but rejects refunds of 999. Of a call with an
unknown outcome, he says that it has failed; of a refund of 127, that it was paid by hand."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

URL = sys.argv[1]


def send(path: str, body: dict | None = None) -> dict:
    headers = {"Authorization": f"Bearer {os.environ['BOB_KEY']}", "Content-Type": "application/json", "Prefer": "wait=0"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=10) as answer:
        return json.load(answer)


while True:
    for request in send("/v1/requests")["requests"]:
        rejects = "999" in request["tool_calls"][0]["arguments_text"]
        rejects = rejects or request["kind"] == "reconcile"
        body = {"action": "reject", "reason": "no"} if rejects else {"action": "approve"}
        if request["kind"] == "reconcile" and "127" in request["tool_calls"][0]["arguments_text"]:
            body = {"action": "respond", "result": "Paid by hand."}
        try:
            send(f"/resume/{request['request_id']}", body)
        except urllib.error.HTTPError as error:
            assert error.code == 409, error.read()
    time.sleep(0.1)
