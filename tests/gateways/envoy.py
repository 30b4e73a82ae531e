"""The real Envoy asks the built service before it lets calls of MCP tools through to an upstream that counts them."""

import http.client
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LIMIT = 60
GATEWAY, OWNER = "edge-key-0123456789a", "alice-key-0123456789"
CONFIG = """
gates:
  billing:
    tools: [Bash]
    report: optional
    hold: 1s
    ext_authz: { user_header: x-user }
tools:
  Bash: { description: A shell., external: {}, parameters: { type: object, properties: { command: { type: string } }, required: [command] } }
policy:
  - { name: quick, tools: [Bash], when: "args.command == \\"ls\\"", decide: allow }
auth:
  api_keys:
    - { user: alice, tenant: acme, key: "alice-key-0123456789" }
    - { user: edge, tenant: acme, key: "edge-key-0123456789a", act_as: true, may: [gate] }
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(found, what):
    end = time.monotonic() + LIMIT
    while not (value := found()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.05)
    return value


def send(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def answers(port, path):
    try:
        return send(port, "GET", path)[0] > 0
    except OSError:
        return False


def is_ready(port):
    try:
        return send(port, "GET", "/readyz")[0] == 200
    except OSError:
        return False


class Upstream(BaseHTTPRequestHandler):
    seen: list[dict] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        Upstream.seen.append({"headers": {k.lower(): v for k, v in self.headers.items()}, "body": body})
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"up")

    def log_message(self, *_):
        pass


def cluster(name, port, http2=False):
    options = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {
        "name": name, "type": "STATIC", "connect_timeout": "2s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]},
        **({"typed_extension_protocol_options": options} if http2 else {}),
    }


def envoy_config(port, upstream, service, timeout):
    kind = "type.googleapis.com/envoy.extensions.filters"
    authz = {
        "name": "envoy.filters.http.ext_authz",
        "typed_config": {
            "@type": f"{kind}.http.ext_authz.v3.ExtAuthz", "failure_mode_allow": False, "transport_api_version": "V3",
            "with_request_body": {"max_request_bytes": 4096, "allow_partial_message": False, "pack_as_bytes": True},
            "grpc_service": {
                "envoy_grpc": {"cluster_name": "holdpoint"}, "timeout": timeout,
                "initial_metadata": [{"key": "authorization", "value": f"Bearer {GATEWAY}"}, {"key": "holdpoint-gate", "value": "billing"}],
            },
        },
    }
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{kind}.http.router.v3.Router"}}
    # The gateway verifies the client: here, whoever it is, it is Alice.
    user = {"header": {"key": "x-user", "value": "alice"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    mutation = {
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": f"{kind}.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"append": user}]},
        },
    }
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in", "codec_type": "AUTO",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}]}]},
        "http_filters": [mutation, authz, router],
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster("upstream", upstream), cluster("holdpoint", service, True)]}}


def call(command, **more):
    params = {"name": "Bash", "arguments": {"command": command}, **more}
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})


def case(name):
    print(f"ok: {name}", flush=True)


def tests(port, slow, service_port, service):
    ask = lambda body, **headers: send(port, "POST", "/mcp", body, {"content-type": "application/json", **headers})
    status, body = ask(call("ls"), **{"holdpoint-call": "forged", "holdpoint-key": "secret", "x-user": "mallory"})
    assert (status, body) == (200, b"up"), (status, body)
    passed = Upstream.seen[-1]["headers"]["holdpoint-call"]
    assert len(passed) == 36 and passed != "forged", passed
    assert "holdpoint-key" not in Upstream.seen[-1]["headers"]
    case("an allowed call passes, with our header at the upstream in place of the client's")

    count = len(Upstream.seen)
    status, body = ask(call("rm"), **{"x-user": "mallory"})
    gate = json.loads(body)["result"]["_meta"]["holdpoint/gate"]
    assert status == 200 and gate["state"] == "pending" and len(Upstream.seen) == count
    case("a held call is answered with 200 and a pending result")

    key = {"authorization": f"Bearer {OWNER}"}
    shown = json.loads(send(service_port, "GET", f"/resume/{gate['request_id']}", headers=key)[1])
    assert "edit" not in shown["allowed_actions"] and shown["can_decide"], shown
    case("edit is not offered, and a spoofed user is the gateway's own")
    assert send(service_port, "POST", f"/resume/{gate['request_id']}/approve", "", {**key, "prefer": "wait=0"})[0] < 300
    assert ask(call("rm", _meta={"progressToken": 2})) == (200, b"up")
    assert json.loads(ask(call("rm"))[1])["result"]["_meta"]["holdpoint/gate"]["state"] == "pending"
    case("after the approval the same call passes once")

    status, body = send(slow, "POST", "/mcp", call("slow"), {"content-type": "application/json"})
    assert status == 200 and b"HELD" in body, (status, body)
    case("a short timeout of Envoy gets a pending result in time")

    assert ask("x" * 4096)[0] == 400 and ask("x" * 4097)[0] == 413
    assert ask("[]")[0] == 400 and ask("")[0] == 400
    case("a body over Envoy's limit is 413, one that is no call is 400")

    count = len(Upstream.seen)
    service.kill()
    service.wait()
    assert ask(call("ls"))[0] == 403 and len(Upstream.seen) == count
    case("without the service nothing passes")


def main():
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    started = []
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        service_port, port, slow = free_port(), free_port(), free_port()
        (here / "holdpoint.yaml").write_text(CONFIG)
        try:
            with (here / "service.log").open("w") as log:
                command = [os.environ["GATEWAYS_SERVICE"], "serve", "--config", "holdpoint.yaml", "--listen", f"127.0.0.1:{service_port}"]
                service = subprocess.Popen(command, cwd=here, stdout=log, stderr=log, env={})
            started.append(service)
            until(lambda: is_ready(service_port) or service.poll() is not None, "the service")
            assert service.poll() is None, (here / "service.log").read_text()
            for number, (listen, timeout) in enumerate([(port, "20s"), (slow, "0.9s")]):
                config = here / f"envoy{number}.json"
                config.write_text(json.dumps(envoy_config(listen, upstream.server_port, service_port, timeout)))
                with (here / f"envoy{number}.log").open("w") as log:
                    command = [os.environ["GATEWAYS_ENVOY"], "-c", str(config), "--base-id", str(os.getpid() % 9000 * 2 + number), "--concurrency", "1"]
                    started.append(subprocess.Popen(command, stdout=log, stderr=log))
                until(lambda: answers(listen, "/") or started[-1].poll() is not None, "Envoy")
                assert started[-1].poll() is None, (here / f"envoy{number}.log").read_text()[-3000:]
            tests(port, slow, service_port, service)
        finally:
            for process in started:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
