"""Runs the processes of scripts/bench --gate-waits, writes the configuration of the service, and builds the messages
that clients send."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

from http_client import request
from machine import Postgres, Process, busy_seconds, cpu_of, free_port, processes, status_of

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "gateways"))
import envoy  # noqa: E402

# The first key speaks for the agents' users. The second key decides.
AGENTS, PERSON = "bench-key-of-32-characters-0001", "bench-key-of-32-characters-0002"
REVISION = "2026-07-28"


def configuration(upstream):
    def tool(effect, **kind):
        properties = {"order": {"type": "integer"}, "held": {"type": "boolean"}}
        parameters = {"type": "object", "properties": properties, "required": ["order"]}
        return {"description": "Changes an order.", "effect": effect, "parameters": parameters, **kind}

    optional, held = {"report": "optional"}, ["refund", "refund_here"]
    approvers = {"groups": ["people"]}
    servers = {
        "up": {"url": f"http://{upstream}/mcp", "effects": {"repeat": "idempotent"}},
        "many": {"url": f"http://{upstream}/catalogue"},
    }
    return {
        "server": {"max_connections": 3000, "max_waiting": 2000},
        "auth": {
            "api_keys": [
                {"user": "agents", "key": AGENTS, "act_as": True, "may": ["gate"]},
                {"user": "edge", "key": envoy.GATEWAY, "act_as": True, "may": ["gate"]},
                {"user": "person", "groups": ["people"], "key": PERSON, "may": ["read", "decide"]},
            ]
        },
        "mcp": servers,
        "tools": {
            "update": tool("idempotent", external={}),
            "refund": tool("once", external={}),
            "refund_here": tool("once", http={"method": "POST", "url": f"http://{upstream}/mcp"}),
        },
        "gates": {
            "proxy": {"tools": ["up_repeat", "up_once"]},
            "catalogue": {"tools": ["many_*"]},
            "waits": {"tools": held, **optional},
            "billing": {"tools": ["update", "refund"], "ext_authz": {"user_header": "x-user"}, **optional},
        },
        "policy": [
            {"name": "held", "tools": held, "when": "has(args.held)", "decide": "hold", "approvers": approvers},
            {"name": "allowed", "tools": ["update", "refund", "up_repeat", "up_once"], "decide": "allow"},
        ],
    }


class Site:
    """Runs the processes of the measurements, and holds the configuration of the service."""

    def __init__(self, folder, binary, sizes, rounds):
        self.folder, self.binary, self.sizes, self.rounds = folder, binary, sizes, rounds
        self.running, self.foreign = [], 0.0

    def start(self):
        self.postgres = Postgres(self.folder)
        self.running.append(self.postgres.process)
        self.upstream = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-BS", os.path.join(HERE, "mcp_upstream.py"), self.upstream.split(":")[1], str(self.sizes.tools)]
        self.spawn(command, "upstream", f"http://{self.upstream}/readyz")
        self.configuration = os.path.join(self.folder, "gate_waits.yaml")
        with open(self.configuration, "w") as file:
            json.dump(configuration(self.upstream), file)
        command = [self.binary, "mcp", "lock", "--yes", "--config", self.configuration]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def spawn(self, command, name, url):
        process = Process(command, os.path.join(self.folder, f"{name}.log"), cwd=self.folder)
        self.running.append(process)
        process.wait_until(lambda: status_of(url) in (200, 404), 120)
        return process

    @contextmanager
    def serving(self, database, replicas=1):
        """Serves a database. Yields the addresses and ids of the processes."""
        started = []
        try:
            for _ in range(replicas):
                address = f"127.0.0.1:{free_port()}"
                command = [self.binary, "serve", "--config", self.configuration, "--listen", address]
                command += ["--database-url", self.postgres.url(database)]
                started.append((address, self.spawn(command, "server", f"http://{address}/readyz")))
            yield [(address, process.pid) for address, process in started]
        finally:
            self.stop([process for _, process in started])

    def new_database(self, name):
        self.postgres.create(name)
        self.postgres.sql("checkpoint")
        return name

    def stop(self, started):
        for process in reversed(started):
            process.stop()
            self.running.remove(process)

    @contextmanager
    def undisturbed(self):
        """Records how many processors other processes use during the block."""
        def others():
            return busy_seconds() - cpu_of([os.getpid()], processes())

        before, began = others(), time.monotonic()
        yield
        self.foreign = max(self.foreign, (others() - before) / (time.monotonic() - began))


def proposal(address, number, user="agent", wait=10, gate="waits", **more):
    body = json.dumps({"gate": gate, "tool": "refund", "arguments": {"order": number, "held": True}})
    return request(address, "/v1/gate/calls", body, authorization=f"Bearer {AGENTS}", holdpoint_user=user, prefer=f"wait={wait}", **more)


def tools_call(address, path, tool, arguments, state=None, **headers):
    """Builds a call of MCP. With `state`, it continues an earlier call."""
    params = {"name": tool, "arguments": arguments} | ({"requestState": state} if state else {})
    return mcp_request(address, path, "tools/call", params, mcp_name=tool, **headers)


def tools_list(address, path, **headers):
    return mcp_request(address, path, "tools/list", {}, **headers)


def mcp_request(address, path, method, params, **headers):
    meta = {"io.modelcontextprotocol/protocolVersion": REVISION, "io.modelcontextprotocol/clientCapabilities": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": meta}})
    accept = "application/json, text/event-stream"
    return request(address, path, body, accept=accept, mcp_protocol_version=REVISION, mcp_method=method, **headers)
