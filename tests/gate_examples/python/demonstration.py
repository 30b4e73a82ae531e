"""Calls the gate of the built-in demonstration with the official MCP client, which has only the address from a command
in docs/gate.md. A refund is held, and its result comes once a person has approved it. Argument: the binary."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

sys.path.append(str(Path(__file__).parents[2] / "support"))
from ports import free_port  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "gate.md"
SHOWN = "127.0.0.1:8080"
LIMIT = 30  # seconds, for each wait


def shown_url() -> str:
    """Returns the address in the page's command. The command has no key, because the demonstration has no accounts."""
    (line,) = re.findall(r"^claude mcp add .*/mcp/refunds.*$", PAGE.read_text(), re.MULTILINE)
    *command, url = shlex.split(line)
    assert command == ["claude", "mcp", "add", "--transport", "http", "refunds"] and SHOWN in url, line
    return url


def send(method: str, url: str) -> dict:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=LIMIT) as answer:
        return json.load(answer)


@contextmanager
def demonstration(binary: str) -> Iterator[str]:
    """Serves the demonstration in an empty folder. Yields its address."""
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        command, around = [binary, "serve", "--listen", address], {"PATH": os.environ["PATH"]}
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=name, env=around, stdout=output, stderr=output)
        try:
            end = time.monotonic() + LIMIT
            while "Holdpoint runs its built-in demonstration" not in log.read_text():
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()
            process.wait()


def approve(address: str, order: int) -> None:
    """Waits for the request about the refund, and approves it."""
    end = time.monotonic() + LIMIT
    while not (found := send("GET", f"http://{address}/v1/requests?status=pending")["requests"]):
        assert time.monotonic() < end, "no question is open"
        time.sleep(0.05)
    (request,) = found
    (call,) = request["tool_calls"]
    assert call["summary"] == f"Refund 120 for order {order}", request
    send("POST", request["approval_url"])


def is_refunded(result, order: int) -> None:
    (text,) = (block.text for block in result.content)
    refund = json.loads(text)
    assert not result.is_error and (refund["status"], refund["order"], refund["amount"]) == ("refunded", order, 120), text
    assert result.meta["holdpoint/gate"]["by"] == ["local"], result.meta


async def waits(url: str, address: str) -> None:
    """The client has only the address. Its call waits until a person has approved."""
    async with Client(url) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["lookup_order", "refund_payment"]
        small = await client.call_tool("refund_payment", {"order": 16, "amount": 20})
        assert json.loads(small.content[0].text)["status"] == "refunded", small
        call = asyncio.create_task(client.call_tool("refund_payment", {"order": 17, "amount": 120}))
        await asyncio.to_thread(approve, address, 17)
        is_refunded(await asyncio.wait_for(call, LIMIT), 17)


async def comes_back(url: str, address: str) -> None:
    """A client of an older revision gets the answer that its call is held, and makes the same call again."""
    async with httpx2.AsyncClient(headers={"Prefer": "wait=0"}, timeout=LIMIT) as http:
        async with Client(streamable_http_client(url, http_client=http), mode="legacy") as client:
            held = await client.call_tool("refund_payment", {"order": 18, "amount": 120})
            text = held.content[0].text
            assert held.is_error and text.startswith("HELD. A person must approve this call"), text
            assert f"http://{address}/resume/{held.meta['holdpoint/gate']['request_id']}" in text, text
            await asyncio.to_thread(approve, address, 18)
            is_refunded(await client.call_tool("refund_payment", {"order": 18, "amount": 120}), 18)


def main(binary: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with demonstration(binary) as address:
        url = shown_url().replace(SHOWN, address)
        asyncio.run(waits(url, address))
        asyncio.run(comes_back(url, address))
    print("the demonstration's gate: held, approved, refunded")


if __name__ == "__main__":
    main(sys.argv[1])
