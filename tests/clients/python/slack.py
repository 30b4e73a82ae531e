"""Plays the part of Slack's API that handles messages. Validates the blocks of each message with the models of
`slack_sdk`: the blocks must be valid, and the models must know every member of them. The program ends once a message
was posted and updated, or with an error at the first message that is not as expected."""

import json
import os
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from slack_sdk.models.blocks import Block

CHANNEL = "C012AB3CD"
posted: dict[str, dict] = {}
updated: set[str] = set()


def check(body: dict) -> None:
    assert body["channel"] == CHANNEL and body["text"]
    blocks = Block.parse_all(body["blocks"])
    for block, original in zip(blocks, body["blocks"], strict=True):
        block.validate_json()
        assert block.to_dict() == original, original


def answer(method: str, body: dict) -> dict:
    check(body)
    if method == "chat.postMessage":
        assert body["unfurl_links"] is False and body["unfurl_media"] is False
        assert "|Review>" in json.dumps(body["blocks"])
        ts = f"1700000000.{len(posted):06}"
        posted[ts] = body
        Path(os.environ["SLACK_POSTED"]).touch()
    else:
        assert method == "chat.update"
        ts = body["ts"]
        assert ts in posted and "|Review>" not in json.dumps(body["blocks"])
        assert " by local, " in body["text"], body["text"]
        updated.add(ts)
    return {"ok": True, "channel": CHANNEL, "ts": ts, "message": body}


class Slack(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.headers["authorization"] == f"Bearer {os.environ['SLACK_TOKEN']}"
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = json.dumps(answer(self.path.removeprefix("/api/"), body)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_) -> None:
        pass


class Server(HTTPServer):
    def handle_error(self, *_) -> None:
        traceback.print_exc()
        os._exit(1)


server = Server(("127.0.0.1", int(os.environ["SLACK_PORT"])), Slack)
while not updated:
    server.handle_request()
print(f"slack_sdk: {len(posted)} messages valid, {len(updated)} of them updated")
