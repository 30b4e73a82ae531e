"""HTTP/1.1 clients over plain sockets that stay open. Their own time is small, and the same for every server."""

import re
import socket


def request(address, path, body=None, **headers):
    """Returns the bytes of a POST, or of a GET if there is no body. An underscore in the name of a header stands for a
    hyphen."""
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"host: {address}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is None:
        return "\r\n".join([*lines, "", ""]).encode()
    lines += ["content-type: application/json", f"content-length: {len(body.encode())}"]
    return "\r\n".join([*lines, "", body]).encode()


def framing(head):
    """Returns the status of an answer, and the length of its body; None for a body in chunks."""
    head = head.lower()
    if b"\r\ntransfer-encoding: chunked" in head:
        return int(head[9:12]), None
    length = re.search(rb"\r\ncontent-length: *(\d+)", head)
    return int(head[9:12]), int(length[1]) if length else 0


class Connection:
    """A connection that waits for each answer."""

    def __init__(self, address):
        self.address = address
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def send(self, message):
        self.socket.sendall(message)

    def read(self):
        """Reads the next answer. Returns its status and its body."""
        head = b""
        while (line := self.file.readline()) != b"\r\n":
            if not line:
                raise RuntimeError(f"{self.address} closed the connection")
            head += line
        status, length = framing(head)
        if length is not None:
            return status, self.file.read(length)
        body = b""
        while size := int(self.file.readline(), 16):
            body += self.file.read(size)
            self.file.readline()
        self.file.readline()
        return status, body

    def ask(self, message, expected):
        """Sends a message. Returns the body of the answer, which must have the status `expected`."""
        self.send(message)
        status, body = self.read()
        if status != expected:
            raise RuntimeError(f"{self.address} answered {status} instead of {expected}: {body[:500].decode(errors='replace')}")
        return body


async def read_answer(reader):
    """Like `Connection.read`, but reads from a stream of asyncio."""
    status, length = framing(await reader.readuntil(b"\r\n\r\n"))
    if length is not None:
        return status, await reader.readexactly(length)
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return status, body
