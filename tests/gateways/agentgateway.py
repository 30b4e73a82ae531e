"""Plays agentgateway's guardrails with a client of grpcio: shows calls to the built service, and reports their
outcomes. The messages are built from descriptors that follow `ext_mcp.proto` of agentgateway, so a second
implementation of Protocol Buffers reads and writes them."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2  # noqa: F401: struct_pb2 registers Struct

from envoy import GATEWAY, OWNER, case, free_port, is_ready, send, until

CONFIG = """
gates:
  files:
    tools: [fs__write]
    hold: 30s
    ext_authz: { user_header: x-user }
tools:
  fs__write: { description: Writes., external: {}, parameters: { type: object, properties: { path: { type: string } }, required: [path] } }
policy:
  - { name: scratch, tools: [fs__write], when: "args.path == \\"/tmp/a\\"", decide: allow }
auth:
  api_keys:
    - { user: alice, tenant: acme, key: "alice-key-0123456789" }
    - { user: edge, tenant: acme, key: "edge-key-0123456789a", act_as: true, may: [gate] }
"""
PACKAGE = "agentgateway.dev.ext_mcp"
FIELD = descriptor_pb2.FieldDescriptorProto


def field(name, number, kind, repeated=False, of=None, oneof=None):
    made = FIELD(name=name, number=number, type=kind, label=FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL)
    if of:
        made.type_name = of
    if oneof is not None:
        made.oneof_index = oneof
    return made


def messages():
    text, raw, message, enum = FIELD.TYPE_STRING, FIELD.TYPE_BYTES, FIELD.TYPE_MESSAGE, FIELD.TYPE_ENUM
    struct, own = ".google.protobuf.Struct", lambda name: f".{PACKAGE}.{name}"
    shown = [field("service_names", 1, text, True), field("method", 2, text), field("metadata_context", 3, message, of=struct)]
    verdict = [
        field("pass", 1, message, of=own("Pass"), oneof=0),
        field("mutated", 2, raw, oneof=0),
        field("error", 3, message, of=own("AuthorizationError"), oneof=0),
    ]
    changes = [field("header_mutation", 4, message, of=own("HeaderMutation")), field("metadata", 5, message, of=struct)]
    shapes = {
        "McpHeader": [field("key", 1, text), field("value", 2, raw)],
        "McpRequest": [*shown, field("mcp_request", 4, raw), field("headers", 5, message, True, own("McpHeader"))],
        "McpResponse": [*shown, field("mcp_response", 4, raw)],
        "Pass": [],
        "AuthorizationError": [field("code", 1, enum, of=own("AuthorizationError.Code")), field("reason", 2, text), field("mcp_error", 3, raw)],
        "HeaderMutation": [field("set", 1, message, True, own("McpHeader")), field("remove", 2, text, True)],
        "McpRequestResult": [*verdict, *changes],
        "McpResponseResult": verdict,
    }
    file = descriptor_pb2.FileDescriptorProto(name="ext_mcp.proto", package=PACKAGE, syntax="proto3", dependency=["google/protobuf/struct.proto"])
    for name, fields in shapes.items():
        made = file.message_type.add(name=name, field=fields)
        if name.endswith("Result"):
            made.oneof_decl.add(name="result")
        if name == "AuthorizationError":
            codes = made.enum_type.add(name="Code")
            for number, code in enumerate(["UNKNOWN", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "INVALID"]):
                codes.value.add(name=code, number=number)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in shapes}


M = messages()


class Gateway:
    """A gRPC channel to the service, with the gateway's key."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def method(self, name, request, result):
        path = f"/{PACKAGE}.ExtMcp/{name}"
        return self.channel.unary_unary(path, request_serializer=M[request].SerializeToString, response_deserializer=M[result].FromString)

    def request(self, path, timeout=10, key=GATEWAY, user="alice", method="tools/call"):
        params = json.dumps({"name": "write", "arguments": {"path": path}}).encode()
        message = M["McpRequest"](service_names=["fs"], method=method, mcp_request=params)
        message.headers.add(key="x-user", value=user.encode())
        ask = self.method("CheckRequest", "McpRequest", "McpRequestResult")
        return ask(message, timeout=timeout, metadata=[("authorization", f"Bearer {key}")])

    def response(self, metadata, result):
        message = M["McpResponse"](service_names=["fs"], method="tools/call", mcp_response=json.dumps(result).encode())
        message.metadata_context.update(metadata)
        report = self.method("CheckResponse", "McpResponse", "McpResponseResult")
        return report(message, timeout=10, metadata=[("authorization", f"Bearer {GATEWAY}")])


def tests(gateway, port):
    key = {"authorization": f"Bearer {OWNER}", "content-type": "application/json", "prefer": "wait=0"}
    get = lambda path: json.loads(send(port, "GET", path, headers=key)[1])

    passed = gateway.request("/tmp/a")
    headers = {header.key: header.value.decode() for header in passed.header_mutation.set}
    assert passed.WhichOneof("result") == "pass" and len(headers["holdpoint-call"]) == 36, passed
    task = dict(passed.metadata)["holdpoint_call"]
    assert task == headers["holdpoint-call"] == headers["holdpoint-task"], passed
    case("an allowed call passes, with its ids in the headers and the metadata")

    assert gateway.response({"holdpoint_call": task}, {"content": [], "isError": True}).WhichOneof("result") == "pass"
    shown = get(f"/v1/tasks/{task}")
    assert shown["status"] == "Completed", shown
    outcome = [item["outcome"] for item in get(f"/v1/tasks/{task}/items")["items"] if item["type"] == "tool_result"]
    assert outcome == ["failed"], outcome
    case("the outcome that CheckResponse shows is the call's")

    began = time.monotonic()
    held = gateway.request("/etc/passwd", timeout=2)
    assert held.WhichOneof("result") == "error" and held.error.code == 1 and held.error.reason.startswith("HELD."), held
    assert 1 < time.monotonic() - began < 2
    members = json.loads(held.error.mcp_error)
    assert members["state"] == "pending" and members["url"].startswith("http"), members
    case("a held call is answered with an error before the deadline")

    request = members["request_id"]
    call = get(f"/resume/{request}")["tool_calls"][0]["tool_call_id"]
    edit = json.dumps({"decisions": {call: {"action": "edit", "arguments": {"path": "/tmp/b"}}}})
    status, body = send(port, "POST", f"/resume/{request}", edit, key)
    assert status < 300, body
    changed = gateway.request("/etc/passwd")
    assert changed.WhichOneof("result") == "mutated", changed
    assert json.loads(changed.mutated) == {"name": "write", "arguments": {"path": "/tmp/b"}}, changed
    again = gateway.request("/etc/passwd", timeout=1)
    assert json.loads(again.error.mcp_error)["state"] == "pending", again
    case("a call that a person edited is mutated, once")

    assert gateway.request("", method="tools/list").WhichOneof("result") == "pass"
    for key, code in [("nobody-key-0123456789", grpc.StatusCode.UNAUTHENTICATED), (OWNER, grpc.StatusCode.PERMISSION_DENIED)]:
        try:
            raise AssertionError(gateway.request("/tmp/a", key=key))
        except grpc.RpcError as error:
            assert error.code() == code, error
    case("other methods pass, and other keys are refused with a status")


def main():
    with tempfile.TemporaryDirectory() as folder:
        here, port = Path(folder), free_port()
        (here / "holdpoint.yaml").write_text(CONFIG)
        with (here / "service.log").open("w") as log:
            command = [os.environ["GATEWAYS_SERVICE"], "serve", "--config", "holdpoint.yaml", "--listen", f"127.0.0.1:{port}"]
            service = subprocess.Popen(command, cwd=here, stdout=log, stderr=log, env={})
        try:
            until(lambda: is_ready(port) or service.poll() is not None, "the service")
            assert service.poll() is None, (here / "service.log").read_text()
            tests(Gateway(port), port)
        finally:
            service.kill()
            service.wait()


if __name__ == "__main__":
    main()
