"""The shop's refunds: POST /refunds/17 with {"order": 17, "amount": 120}. One `Idempotency-Key` is paid once."""
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

paid = {}


class Refunds(BaseHTTPRequestHandler):
    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refund = {"refund": f"R-{len(paid) + 1}", "amount": call["amount"], "order": call["order"]}
        answer = json.dumps(paid.setdefault(self.headers["Idempotency-Key"], refund)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Refunds)
print(f"refunds are paid at http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
