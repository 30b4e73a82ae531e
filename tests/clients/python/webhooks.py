"""Receives webhooks, and verifies each message with the library `standardwebhooks`. Each message verifies under each of
the two secrets. It does not verify with one byte changed or six minutes later. The program ends once it has one message
of each expected type."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

EXPECTED = {"request.created", "request.decided", "task.paused", "task.completed"}
SECRETS = [os.environ["NEW_SECRET"], os.environ["OLD_SECRET"]]
seen: set[str] = set()
ids: set[str] = set()


def is_refused(webhook: Webhook, body: str, headers: dict[str, str]) -> bool:
    try:
        webhook.verify(body, headers)
    except WebhookVerificationError:
        return True
    return False


def check(body: str, headers: dict[str, str]) -> None:
    message = json.loads(body)
    for secret in SECRETS:
        webhook = Webhook(secret)
        assert webhook.verify(body, headers) == message
        assert is_refused(webhook, body.replace("t", "T", 1), headers)
        late = str(int(headers["webhook-timestamp"]) - 360)
        assert is_refused(webhook, body, {**headers, "webhook-timestamp": late})
    assert is_refused(Webhook("whsec_" + "A" * 44), body, headers)
    assert headers["webhook-id"] not in ids, "each message arrives once here"
    ids.add(headers["webhook-id"])
    seen.add(message["type"])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        check(body, {name.lower(): value for name, value in self.headers.items()})
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


server = HTTPServer(("127.0.0.1", int(os.environ["PYTHON_PORT"])), Receiver)
while not EXPECTED <= seen:
    server.handle_request()
print(f"standardwebhooks for Python: {len(ids)} messages verified")
