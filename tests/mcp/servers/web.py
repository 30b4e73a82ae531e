"""Serves over Streamable HTTP. Arguments: the folder, the revision, the port, and `sse` if answers are event
streams."""

import json
import socket
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tools import Tools

tools = Tools(*sys.argv[1:3])
sessions: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        # Sends an answer's second write at once. By default, it would wait for the acknowledgement of the first write.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, text: str = "", kind: str = "application/json", session: str | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def half(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: len(text) // 2].encode())
        self.wfile.flush()

    def mismatch(self, message: dict) -> str | None:
        """Returns the name of a header that does not match the body; None if all match. Revision 2026-07-28 demands
        that they match."""
        params = message.get("params", {})
        said = params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion")
        must = {"MCP-Protocol-Version": said or "", "Mcp-Method": message["method"]}
        if message["method"] == "tools/call":
            must["Mcp-Name"] = params["name"]
        return next((name for name, value in must.items() if self.headers.get(name) != value), None)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        message, session = json.loads(text), None
        first = message["method"] == "initialize"
        if tools.stateless:
            wrong = None if first else self.mismatch(message)
            if wrong:
                error = {"code": -32020, "message": f"{wrong} does not match"}
                self.reply(400, json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "error": error}))
                return
        elif first:
            session = str(uuid.uuid4())
            sessions.add(session)
        elif message["method"] != "server/discover" and self.headers.get("Mcp-Session-Id") not in sessions:
            self.reply(404, "no such session", "text/plain")
            return
        status = tools.read("plan.json").get("status", {}).get(message["method"])
        if status:
            self.reply(status[0], status[1], "text/plain")
            return
        answer = tools.answer(message, text, dict(self.headers), self.half)
        if answer is None:
            self.reply(202)
        elif tools.stateless and '"code": -32601' in answer:
            self.reply(404, answer)
        elif "sse" in sys.argv and not first:
            noise = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}})
            self.reply(200, f": hello\n\ndata: {noise}\n\ndata: {answer}\n\n", "text/event-stream")
        else:
            self.reply(200, answer, session=session)

    def refuse(self) -> None:
        self.reply(405)

    do_GET = do_DELETE = refuse  # noqa: N815


tools.note("started")
ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
