"""Tests the real agentgateway in a container: it asks the built service before it passes calls of an MCP tool on to a
server that counts them. Prints that nothing ran if Docker or the image is missing."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agentgateway import CONFIG
from envoy import GATEWAY, OWNER, case, free_port, is_ready, send, until

IMAGE = "cr.agentgateway.dev/agentgateway:v1.4.1"
SERVER = Path(__file__).parents[1] / "mcp" / "servers" / "web.py"
WRITE = {
    "name": "write", "description": "Writes.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def missing():
    """Returns the reason why the container cannot run here; None if it can."""
    for command in (["docker", "info"], ["docker", "pull", "--quiet", IMAGE]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{' '.join(command)}: {error}"
        if done.returncode != 0:
            return f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}"
    return None


def gateway_config(port, upstream, service):
    """Returns the gateway's configuration: the lines of docs/gate.md, in front of one server."""
    processor = {
        "kind": "remote", "host": f"127.0.0.1:{service}", "failureMode": "failClosed", "methods": {"tools/call": "full"},
        "metadata": {"holdpoint_call": 'request.headers["holdpoint-call"]'},
        "policies": {"backendAuth": {"key": GATEWAY}},
    }
    target = {"name": "fs", "mcp": {"host": f"http://127.0.0.1:{upstream}/mcp"}}
    route = {"policies": {"mcpGuardrails": {"processors": [processor]}}, "backends": [{"mcp": {"targets": [target]}}]}
    return {"binds": [{"port": port, "listeners": [{"routes": [route]}]}]}


class Client:
    """An MCP client of revision 2025-11-25. It sends the arguments of a call as given, so that a test can compare their
    bytes."""

    def __init__(self, port):
        self.port, self.headers = port, {"content-type": "application/json", "accept": "application/json, text/event-stream", "x-user": "alice"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        self.post(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}))
        self.post('{"jsonrpc": "2.0", "method": "notifications/initialized"}')

    def post(self, body):
        command = ["curl", "-si", "--max-time", "60", f"http://127.0.0.1:{self.port}/mcp", "--data-binary", body]
        command += [word for name, value in self.headers.items() for word in ("-H", f"{name}: {value}")]
        head, _, text = subprocess.run(command, capture_output=True, text=True, timeout=90).stdout.partition("\n\n")
        for line in head.splitlines():
            if line.lower().startswith("mcp-session-id:"):
                self.headers["mcp-session-id"] = line.split(":", 1)[1].strip()
        lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith(("data:", "{"))]
        answers = [message for message in map(json.loads, filter(str.strip, lines)) if "id" in message]
        return answers[-1] if answers else None

    def call(self, arguments):
        return self.post('{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "write", "arguments": %s}}' % arguments)


def tests(port, service_port, ledger):
    ran = lambda: [line for line in map(json.loads, ledger.read_text().splitlines()) if line["at"] == "ran"]
    key = {"authorization": f"Bearer {OWNER}", "content-type": "application/json", "prefer": "wait=0"}
    get = lambda path: json.loads(send(service_port, "GET", path, headers=key)[1])
    client = Client(port)

    answer = client.call('{ "path" : "/tmp/a" }')
    assert answer["result"]["content"][0]["text"] == "ran 1", answer
    headers = [json.loads(line)["headers"] for line in ledger.read_text().splitlines() if json.loads(line)["at"] == "received"]
    task = {name.lower(): value for name, value in headers[-1].items()}["holdpoint-call"]
    case("an allowed call passes, with our header at the upstream")

    items = get(f"/v1/tasks/{task}/items")["items"]
    (shown,) = [call["arguments_text"] for item in items if item["type"] == "assistant_message" for call in item["tool_calls"]]
    assert shown in ran()[-1]["text"], (shown, ran()[-1]["text"])
    case("the bytes that go to the upstream are those that were shown")

    results = until(lambda: [item for item in get(f"/v1/tasks/{task}/items")["items"] if item["type"] == "tool_result"], "the outcome")
    assert [item["outcome"] for item in results] == ["succeeded"] and "ran 1" in results[0]["content"], results
    case("its outcome is reported")

    held = client.call('{"path": "/etc/passwd"}')["error"]
    assert held["code"] == -32001 and held["data"]["state"] == "pending" and len(ran()) == 1, held
    path = f"/resume/{held['data']['request_id']}/approve"
    status, body = send(service_port, "POST", path, "", key)
    assert status < 300, body
    assert "result" in client.call('{"path": "/etc/passwd"}') and len(ran()) == 2
    assert client.call('{"path": "/etc/passwd"}')["error"]["data"]["state"] == "pending" and len(ran()) == 2
    case("a held call is an error with the state, and passes once after the approval")


def main():
    reason = missing()
    if reason:
        print(f"NOT RUN: the real agentgateway: {reason}")
        return
    started, name = [], f"holdpoint-agentgateway-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        here, (service, upstream, port) = Path(folder), (free_port() for _ in range(3))
        here.chmod(0o755)
        (here / "holdpoint.yaml").write_text(CONFIG.replace("hold: 30s", "hold: 1s"))
        (here / "tools.json").write_text(json.dumps([WRITE]))
        (here / "gateway.json").write_text(json.dumps(gateway_config(port, upstream, service)))
        commands = {
            "service": [os.environ["GATEWAYS_SERVICE"], "serve", "--config", "holdpoint.yaml", "--listen", f"127.0.0.1:{service}"],
            "upstream": [sys.executable, str(SERVER), folder, "2025-11-25", str(upstream)],
            "gateway": ["docker", "run", "--rm", "--name", name, "--network", "host", "-v", f"{here}/gateway.json:/gateway.json:ro",
                        IMAGE, "-f", "/gateway.json"],
        }
        try:
            for what, command in commands.items():
                with (here / f"{what}.log").open("w") as log:
                    started.append(subprocess.Popen(command, cwd=here, stdout=log, stderr=log))
            until(lambda: is_ready(service), "the service")
            listens = lambda: subprocess.run(["curl", "-s", f"http://127.0.0.1:{port}/"], capture_output=True).returncode == 0
            until(lambda: listens() or started[-1].poll() is not None, "agentgateway")
            assert started[-1].poll() is None, (here / "gateway.log").read_text()[-3000:]
            tests(port, service, here / "ledger")
        finally:
            subprocess.run(["docker", "rm", "--force", name], capture_output=True)
            for process in started:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
