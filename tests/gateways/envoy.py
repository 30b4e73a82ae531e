"""Tests the real Envoy: it asks the built service before it passes calls of MCP tools on to an upstream that counts
them."""

import base64
import hmac
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from ports import free_port  # noqa: E402

LIMIT = 60
GATEWAY, OWNER, ADMIN = "edge-key-0123456789a", "alice-key-0123456789", "root-key-01234567890"
CONFIG = """
gates:
  billing:
    tools: [Bash]
    report: optional
    hold: 1s
    ext_authz: { user_header: x-user, groups_header: x-groups }
tools:
  Bash: { description: A shell., external: {}, parameters: { type: object, properties: { command: { type: string } }, required: [command] } }
policy:
  - { name: quick, tools: [Bash], when: "args.command == \\"ls\\"", decide: allow }
  - { name: never, tools: [Bash], when: "args.command == \\"dd\\"", decide: deny, reason: "Not this one." }
  - { name: ops, tools: [Bash], when: "args.command == \\"reboot\\" && \\"ops\\" in user.groups", decide: allow }
auth:
  api_keys:
    - { user: alice, tenant: acme, key: "alice-key-0123456789" }
    - { user: root, tenant: acme, key: "root-key-01234567890", admin: true, may: [read] }
    - { user: edge, tenant: acme, key: "edge-key-0123456789a", act_as: true, may: [gate] }
"""
# The key of the tokens that the gateway verifies.
TOKENS = b"a-key-for-tokens-0123456789abcde"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(user: str, key: bytes = TOKENS) -> str:
    claims = {"iss": "acme", "sub": user, "exp": int(time.time()) + 600}
    head = ".".join(base64url(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "k"}, claims))
    return f"{head}.{base64url(hmac.digest(key, head.encode(), 'sha256'))}"


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


def post_over_http2(port, body):
    """Posts an MCP message over HTTP/2, for which Python's own client has no support. Returns the version of HTTP with the
    status, and the body of the answer."""
    version = subprocess.run(["curl", "--version"], capture_output=True, check=True, text=True).stdout
    assert "HTTP2" in version, "this curl has no HTTP/2: put one in PATH that has it, such as Debian's\n" + version
    command = [
        "curl", "--silent", "--show-error", "--max-time", str(LIMIT), "--http2-prior-knowledge", "--write-out", "\n%{http_version} %{http_code}",
        "--header", "content-type: application/json", "--data-binary", body, f"http://127.0.0.1:{port}/mcp",
    ]
    answer, _, status = subprocess.run(command, capture_output=True, check=True, text=True).stdout.rpartition("\n")
    return status, answer


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


FILTERS = "type.googleapis.com/envoy.extensions.filters"


def http_filter(name, kind, **settings):
    return {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": f"{FILTERS}.http.{name}.v3.{kind}", **settings}}


def authz(timeout):
    return http_filter(
        "ext_authz", "ExtAuthz", failure_mode_allow=False, transport_api_version="V3",
        with_request_body={"max_request_bytes": 4096, "allow_partial_message": False, "pack_as_bytes": True},
        grpc_service={
            "envoy_grpc": {"cluster_name": "holdpoint"}, "timeout": timeout,
            "initial_metadata": [{"key": "authorization", "value": f"Bearer {GATEWAY}"}, {"key": "holdpoint-gate", "value": "billing"}],
        },
    )


def mutation(*changes):
    return http_filter("header_mutation", "HeaderMutation", mutations={"request_mutations": changes})


def always_alice():
    """The filters of a gateway that takes every client for Alice of ops."""
    set_to = lambda key, value: {"append": {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    return [mutation(set_to("x-user", "alice"), set_to("x-groups", "ops"))]


def user_of_the_token():
    """The filters of a gateway that removes the client's own headers. If the request has a token, the gateway verifies
    it and sets the user to the token's claim."""
    keys = {"keys": [{"kty": "oct", "alg": "HS256", "kid": "k", "k": base64url(TOKENS)}]}
    provider = {
        "issuer": "acme", "local_jwks": {"inline_string": json.dumps(keys)},
        "claim_to_headers": [{"header_name": "x-user", "claim_name": "sub"}],
    }
    requires = {"requires_any": {"requirements": [{"provider_name": "acme"}, {"allow_missing": {}}]}}
    rules = [{"match": {"prefix": "/"}, "requires": requires}]
    verifies = http_filter("jwt_authn", "JwtAuthentication", providers={"acme": provider}, rules=rules)
    return [mutation({"remove": "x-user"}, {"remove": "x-groups"}), verifies]


def listener(port, *filters):
    manager = {
        "@type": f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in", "codec_type": "AUTO",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}]}]},
        "http_filters": [*filters, http_filter("router", "Router")],
    }
    return {
        "name": str(port),
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}],
    }


def envoy_config(listeners, upstream, service):
    return {"static_resources": {"listeners": listeners, "clusters": [cluster("upstream", upstream), cluster("holdpoint", service, True)]}}


def call(command, **more):
    params = {"name": "Bash", "arguments": {"command": command}, **more}
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})


def case(name):
    print(f"ok: {name}", flush=True)


def tests(ports, service_port, service):
    ask = lambda body, port=ports["usual"], **headers: send(port, "POST", "/mcp", body, {"content-type": "application/json", **headers})
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

    status, body = ask(call("dd"))
    denied = json.loads(body)
    assert status == 200 and denied["id"] == 7 and denied["result"]["isError"], (status, body)
    assert denied["result"]["content"][0]["text"] == "The call of Bash was denied: Not this one. It has not run.", body
    assert denied["result"]["_meta"]["holdpoint/gate"]["rule"] == "never" and len(Upstream.seen) == count
    case("a call that a rule denies is answered with 200 and the rule's reason, and reaches no upstream")

    key = {"authorization": f"Bearer {OWNER}"}
    shown = json.loads(send(service_port, "GET", f"/resume/{gate['request_id']}", headers=key)[1])
    assert "edit" not in shown["allowed_actions"] and shown["can_decide"], shown
    case("edit is not offered, and a spoofed user is the gateway's own")
    assert send(service_port, "POST", f"/resume/{gate['request_id']}/approve", "", {**key, "prefer": "wait=0"})[0] < 300
    count = len(Upstream.seen)
    for path, changed in (("/other", call("rm")), ("/mcp", call("rm", inputResponses={"sure": {"action": "accept"}}))):
        status, body = send(ports["usual"], "POST", path, changed, {"content-type": "application/json"})
        other = json.loads(body)["result"]["_meta"]["holdpoint/gate"]
        assert other["state"] == "pending" and other["task_id"] != gate["task_id"], (path, body)
    assert len(Upstream.seen) == count
    case("an approval counts neither at another path nor for further input")
    assert ask(call("rm", _meta={"progressToken": 2})) == (200, b"up")
    assert json.loads(ask(call("rm"))[1])["result"]["_meta"]["holdpoint/gate"]["state"] == "pending"
    case("after the approval the same call passes once")

    assert post_over_http2(ports["usual"], call("ls")) == ("2 200", "up")
    count = len(Upstream.seen)
    status, body = post_over_http2(ports["usual"], call("cp"))
    held = json.loads(body)["result"]["_meta"]["holdpoint/gate"]
    assert status == "2 200" and held["state"] == "pending" and len(Upstream.seen) == count, (status, body)
    case("a client that speaks HTTP/2 to the gateway gets the same answers")

    status, body = ask(call("slow"), ports["slow"])
    assert status == 200 and b"HELD" in body, (status, body)
    case("a short timeout of Envoy gets a pending result in time")

    assert ask("x" * 4096)[0] == 400 and ask("x" * 4097)[0] == 413
    assert ask("[]")[0] == 400 and ask("")[0] == 400
    case("a body over Envoy's limit is 413, one that is no call is 400")

    assert ask(call("reboot")) == (200, b"up")
    claims(lambda command="ls", **more: ask(call(command), ports["tokens"], **{"x-user": "mallory", "x-groups": "ops", **more}), service_port)

    count = len(Upstream.seen)
    service.send_signal(signal.SIGSTOP)
    assert ask(call("ls"), ports["slow"])[0] == 403 and len(Upstream.seen) == count
    case("a service that does not answer before Envoy's timeout lets nothing pass")

    service.kill()
    service.wait()
    assert ask(call("ls"))[0] == 403 and len(Upstream.seen) == count
    case("without the service nothing passes")


def claims(ask, service_port):
    """Tests requests in which the client claims to be Mallory of ops."""

    def user():
        task = Upstream.seen[-1]["headers"]["holdpoint-call"]
        status, body = send(service_port, "GET", f"/v1/tasks/{task}", headers={"authorization": f"Bearer {ADMIN}"})
        assert status == 200, body
        return json.loads(body)["user_id"]

    for name in ("bob", "carol"):
        assert ask(authorization=f"Bearer {token(name)}") == (200, b"up")
        assert user() == name and Upstream.seen[-1]["headers"]["x-user"] == name, Upstream.seen[-1]
    case("the user is the claim of the verified token, in place of the client's own header")

    count = len(Upstream.seen)
    held = json.loads(ask("reboot", authorization=f"Bearer {token('bob')}")[1])["result"]["_meta"]["holdpoint/gate"]
    assert held["state"] == "pending" and len(Upstream.seen) == count, held
    case("the client's own groups are removed")

    assert ask() == (200, b"up")
    assert user() == "edge" and "x-user" not in Upstream.seen[-1]["headers"], Upstream.seen[-1]
    case("without a token the client's own header is removed, and the call is of the gateway's key")

    count = len(Upstream.seen)
    assert ask(authorization=f"Bearer {token('bob', b'another-key-for-tokens-012345678')}")[0] == 401
    assert len(Upstream.seen) == count
    case("a token that the gateway cannot verify never reaches the service")


def main():
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    started = []
    with tempfile.TemporaryDirectory() as folder:
        here, service_port = Path(folder), free_port()
        ports = {name: free_port() for name in ("usual", "slow", "tokens")}
        (here / "holdpoint.yaml").write_text(CONFIG)
        config = here / "envoy.json"
        listeners = [
            listener(ports["usual"], *always_alice(), authz("20s")),
            listener(ports["slow"], *always_alice(), authz("0.9s")),
            listener(ports["tokens"], *user_of_the_token(), authz("20s")),
        ]
        config.write_text(json.dumps(envoy_config(listeners, upstream.server_port, service_port)))
        try:
            with (here / "service.log").open("w") as log:
                command = [os.environ["GATEWAYS_SERVICE"], "serve", "--config", "holdpoint.yaml", "--listen", f"127.0.0.1:{service_port}"]
                service = subprocess.Popen(command, cwd=here, stdout=log, stderr=log, env={})
            started.append(service)
            until(lambda: is_ready(service_port) or service.poll() is not None, "the service")
            assert service.poll() is None, (here / "service.log").read_text()
            with (here / "envoy.log").open("w") as log:
                command = [os.environ["GATEWAYS_ENVOY"], "-c", str(config), "--base-id", str(os.getpid() % 9000), "--concurrency", "1"]
                envoy = subprocess.Popen(command, stdout=log, stderr=log)
            started.append(envoy)
            until(lambda: all(answers(port, "/") for port in ports.values()) or envoy.poll() is not None, "Envoy")
            assert envoy.poll() is None, (here / "envoy.log").read_text()[-3000:]
            tests(ports, service_port, service)
        finally:
            for process in started:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
