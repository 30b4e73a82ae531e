"""Plays the part of Slack's API that handles messages. Validates the blocks of each message with the models of
`slack_sdk`: the blocks must be valid, and the models must know every member of them. The program ends once a message
about one question and a message about several questions were posted and updated, or with an error at the first message
that is not as expected."""

import json
import os
import re
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from slack_sdk.models.blocks import Block

CHANNEL = "C012AB3CD"
# The pages of the questions of each posted message.
posted: dict[str, list[str]] = {}
updated: set[str] = set()


def pages(body: dict) -> list[str]:
    """Returns the addresses to which the message links, one for each question that waits."""
    return re.findall(r"<([^|>]+)\|Review>", json.dumps(body["blocks"]))


def check(body: dict) -> None:
    assert body["channel"] == CHANNEL and body["text"]
    blocks = Block.parse_all(body["blocks"])
    for block, original in zip(blocks, body["blocks"], strict=True):
        block.validate_json()
        assert block.to_dict() == original, original


def tell(variable: str, text: str) -> None:
    """Writes the file that a variable names, so that the file is complete as soon as it exists."""
    path = Path(os.environ[variable])
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


def check_post(body: dict) -> str:
    assert body["unfurl_links"] is False and body["unfurl_media"] is False
    waiting = pages(body)
    ts = f"1700000000.{len(posted):06}"
    posted[ts] = waiting
    if len(waiting) == 1:
        assert body["text"].startswith("A question waits: "), body["text"]
        tell("SLACK_POSTED", waiting[0])
    else:
        assert len(waiting) > 1 and body["text"] == f"{len(waiting)} questions wait", body["text"]
        tell("SLACK_GATHERED", "\n".join(waiting))
    return ts


def check_update(body: dict) -> str:
    ts = body["ts"]
    asked, waiting = posted[ts], pages(body)
    assert set(waiting) < set(asked), waiting
    if len(asked) == 1:
        assert " by local, " in body["text"], body["text"]
    else:
        assert body["text"] == f"{len(waiting)} of {len(asked)} questions still wait", body["text"]
        assert " by local, " in json.dumps(body["blocks"])
    updated.add(ts)
    return ts


def answer(method: str, body: dict) -> dict:
    check(body)
    if method == "chat.postMessage":
        ts = check_post(body)
    else:
        assert method == "chat.update"
        ts = check_update(body)
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
while {len(posted[ts]) > 1 for ts in updated} != {False, True}:
    server.handle_request()
print(f"slack_sdk: {len(posted)} messages valid, {len(updated)} of them updated")
