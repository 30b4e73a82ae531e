"""Receives webhooks, verifies each message with the library `standardwebhooks`, and parses it with the generated
client. Each message verifies under each of the two secrets. It does not verify with one byte changed or six minutes
later. Messages in brief and pings arrive at `/`, messages in full at `/full`, and reminders at `/reminders`. The
program ends once it has one message of each expected kind, or with an error at the first message that is not as
expected."""

import json
import os
import re
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from holdpoint_client.models import WebhookData, WebhookMessage, WebhookPing
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

EVENTS = {"request.created", "request.decided", "task.paused", "task.completed"}
EXPECTED = {("/", kind) for kind in EVENTS | {"ping", "not ASCII", "sent again"}}
EXPECTED |= {("/full", kind) for kind in EVENTS | {"not ASCII"}}
EXPECTED |= {("/reminders", "request.waiting")}
SECRETS = [os.environ["NEW_SECRET"], os.environ["OLD_SECRET"]]
seen: set[tuple[str, str]] = set()
# The body of each message, by the message's path and id.
bodies: dict[tuple[str, str], str] = {}


def is_refused(webhook: Webhook, body: str, headers: dict[str, str]) -> bool:
    try:
        webhook.verify(body, headers)
    except WebhookVerificationError:
        return True
    return False


def check_content(path: str, message_id: str, message: dict) -> None:
    """Checks that the id and the data are those of a ping, a message in full, a reminder, or a message in brief."""
    kind, data = message["type"], message["data"]
    parsed = WebhookMessage.from_dict(message).data
    is_in_brief = kind != "ping" and path != "/full"
    assert isinstance(parsed, WebhookPing) == (kind == "ping"), parsed
    assert isinstance(parsed, WebhookData) == is_in_brief, parsed
    if kind == "ping":
        assert re.fullmatch(r"ping_[0-9a-f]{32}", message_id), message_id
        assert (path, data) == ("/", {"target": "python"}), data
    elif path == "/full":
        assert re.fullmatch(r"evt_[0-9a-f]{32}_[0-9]+", message_id), message_id
        assert parsed.event == data["event"] == kind and "tenant" not in data, data
    elif path == "/reminders":
        assert message_id == f"tmr_{data['request']['request_id']}_python-reminders", message_id
    else:
        assert re.fullmatch(rf"evt_[0-9a-f]{{32}}_{data['event']}", message_id), message_id
        assert data["tenant"] == "default", data


def check(path: str, body: str, headers: dict[str, str]) -> None:
    message = json.loads(body)
    for secret in SECRETS:
        webhook = Webhook(secret)
        assert webhook.verify(body, headers) == message
        assert is_refused(webhook, body.replace("t", "T", 1), headers)
        late = str(int(headers["webhook-timestamp"]) - 360)
        assert is_refused(webhook, body, {**headers, "webhook-timestamp": late})
    assert is_refused(Webhook("whsec_" + "A" * 44), body, headers)
    message_id = headers["webhook-id"]
    check_content(path, message_id, message)
    seen.add((path, message["type"]))
    if not body.isascii():
        seen.add((path, "not ASCII"))
    earlier = bodies.get((path, message_id))
    if earlier is not None:
        # The script names the only message that arrives twice, before it sends this message again.
        assert message_id == Path(os.environ["PYTHON_RESENT"]).read_text(), f"{message_id} arrived twice"
        assert earlier == body
        seen.add((path, "sent again"))
    bodies[path, message_id] = body


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        check(self.path, body, {name.lower(): value for name, value in self.headers.items()})
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


class Server(HTTPServer):
    def handle_error(self, *_) -> None:
        traceback.print_exc()
        os._exit(1)


server = Server(("127.0.0.1", int(os.environ["PYTHON_PORT"])), Receiver)
while not EXPECTED <= seen:
    server.handle_request()
print(f"standardwebhooks for Python: {len(bodies)} messages verified")
