"""An MCP server (revision 2026-07-28) whose tools answer at once, for scripts/bench --gate-waits. /mcp has two tools,
and /catalogue has many. Arguments: the port, and the number of tools of /catalogue."""

import asyncio
import json
import re
import sys

TEXT = {"type": "string", "description": "A text of at most a line, as the person wrote it."}


def tool(name):
    """Returns a tool's definition of the usual size."""
    properties = {"order": {"type": "integer", "description": "The number of the order."}, "reason": TEXT, "note": TEXT}
    schema = {"type": "object", "properties": properties, "required": ["order"]}
    description = "Changes an order, and answers with its new state. " * 4
    return {"name": name, "description": description.strip(), "inputSchema": schema}


def result(path, message, tools):
    method = message["method"]
    if method == "tools/call":
        return {"resultType": "complete", "content": [{"type": "text", "text": "ran"}]}
    if method == "tools/list":
        return {"resultType": "complete", "tools": tools[path], "ttlMs": 600000, "cacheScope": "private"}
    if method == "server/discover":
        info = {"name": "bench", "version": "1"}
        return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info}
    return None


class Server(asyncio.Protocol):
    def __init__(self, tools):
        self.tools, self.rest = tools, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n") + 4) > 3:
            head = self.rest[:end]
            length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
            whole = end + (int(length[1]) if length else 0)
            if len(self.rest) < whole:
                return
            body, self.rest = self.rest[end:whole], self.rest[whole:]
            self.transport.write(self.answer(head.split(b" ", 2)[1].decode(), body))

    def answer(self, path, body):
        message = json.loads(body) if path in self.tools and body else {"method": ""}
        found = result(path, message, self.tools)
        status, text = "404 Not Found", ""
        if found is not None:
            status, text = "200 OK", json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": found})
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        return (head + text).encode()


async def serve(port, count):
    tools = {"/mcp": [tool("repeat"), tool("once")], "/catalogue": [tool(f"tool_{number}") for number in range(count)]}
    server = await asyncio.get_running_loop().create_server(lambda: Server(tools), "127.0.0.1", port)
    await server.serve_forever()


asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
