"""Checks the fake Responses endpoints of the Rust tests with the official OpenAI client.

The tests play recorded streams: the conversations in src/model/conformance/wire/openai_responses, and the files in
tests/support/responses. A server on loopback sends each stream to the client, with
`client.responses.create(stream=True)` and `client.responses.stream`. The client must know the class of every event and
every member of it, and every member must be valid. The final response must be the recorded response. A broken stream
must be an error for the client, too. The client's types validate the recorded unstreamed answers, and the requests that
the service is expected to send."""

import json
import pathlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import openai
import pydantic
from openai.types.responses import Response, response_create_params
from openai.types.responses.function_tool_param import FunctionToolParam
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.response_stream_event import ResponseStreamEvent

ROOT = pathlib.Path(__file__).resolve().parents[3]
WIRE = ROOT / "src/model/conformance/wire/openai_responses"
FILES = ROOT / "tests/support/responses"
ENDS = ("response.completed", "response.incomplete", "response.failed")

STRICT = pydantic.ConfigDict(extra="forbid")


def unknown(value, place):
    """Yields the members that the client's classes do not know, at any depth."""
    if isinstance(value, pydantic.BaseModel):
        for name in value.model_extra or {}:
            yield f"{place}.{name}"
        for name in type(value).model_fields:
            yield from unknown(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield from unknown(one, f"{place}[{at}]")


def kinds(union):
    """Returns the class of each event, by the event's `type`."""
    found = {}
    for one in union.__args__:
        for kind in one.model_fields["type"].annotation.__args__:
            found[kind] = one
    return found


KINDS = kinds(ResponseStreamEvent.__args__[0])


def parts(text):
    """Returns the parts of a traffic file: for each part, its first line and its body."""
    found = []
    for line in text.splitlines(keepends=True):
        if line[:3] in ("<<<", ">>>", "|||"):
            found.append((line.strip(), ""))
        elif found:
            head, body = found[-1]
            found[-1] = (head, body + line)
    return found


def events(body):
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]


def judge_event(place, sent, got):
    kind = sent["type"]
    assert kind in KINDS, f"{place}: the client knows no event {kind}"
    assert type(got) is KINDS[kind], f"{place}: {type(got)}"
    valid = KINDS[kind].model_validate_json(json.dumps(sent))
    assert not list(unknown(valid, kind)), f"{place}: {list(unknown(valid, kind))}"
    assert got.to_dict() == sent, f"{place}: {got}"


def judge_stream(place, client, body):
    """Reads the stream in both of the client's ways. Returns whether the stream ended."""
    sent = events(body)
    ended = sent[-1]["type"] in ENDS
    # The client raises no error if a stream ends early, and takes an `error` event for an ordinary event.
    got = list(client.responses.create(model="m", input="x", stream=True))
    assert len(got) == len(sent), f"{place}: {len(got)} of {len(sent)} events"
    for one, event in zip(sent, got, strict=True):
        judge_event(place, one, event)
    numbers = [one["sequence_number"] for one in sent]
    assert numbers == list(range(len(sent))), f"{place}: {numbers}"
    with client.responses.stream(model="m", input="x") as stream:
        try:
            final = stream.get_final_response()
        except RuntimeError:
            final = None
    completed = sent[-1]["type"] == "response.completed"
    assert (final is not None) == completed, f"{place}: {final}"
    if completed:
        # The client adds parsed forms to `content`, so this member is not compared.
        for one, item in zip(sent[-1]["response"]["output"], final.output, strict=True):
            kept = {name: item.to_dict()[name] for name in one if name != "content"}
            assert kept == {name: one[name] for name in kept}, f"{place}: {item}"
        text = "".join(
            part["text"]
            for one in sent[-1]["response"]["output"]
            for part in one.get("content") or []
            if part["type"] == "output_text"
        )
        assert final.output_text == text, f"{place}: {final.output_text}"
    return ended


def judge_whole(place, body):
    whole = Response.model_validate_json(body)
    assert not list(unknown(whole, "response")), f"{place}: {list(unknown(whole, 'response'))}"


def judge_request(place, body, created, items, tools):
    asked = json.loads(body)
    known = response_create_params.ResponseCreateParamsBase.__annotations__.keys() | {"stream"}
    assert set(asked) <= set(known), f"{place}: {set(asked) - set(known)}"
    created.validate_python({**asked, "input": "x", "tools": []})
    tools.validate_python(asked.get("tools", []))
    items.validate_python(asked["input"])


class Endpoint(BaseHTTPRequestHandler):
    body = b""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("content-length", str(len(Endpoint.body)))
        self.end_headers()
        self.wfile.write(Endpoint.body)

    def log_message(self, *_):
        pass


def main():
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    client = openai.OpenAI(api_key="sk-0123456789abcdef", base_url=url, max_retries=0)
    created = pydantic.TypeAdapter(response_create_params.ResponseCreateParamsBase)
    items = pydantic.TypeAdapter(list[ResponseInputItemParam], config=STRICT)
    tools = pydantic.TypeAdapter(list[FunctionToolParam], config=STRICT)
    streams = ended = wholes = requests = 0
    for file in sorted(WIRE.glob("*.txt")) + sorted(FILES.glob("*.sse")):
        text = file.read_text()
        found = parts(text) if file.suffix == ".txt" else [("<<< 200 text/event-stream", text)]
        for at, (head, body) in enumerate(found):
            place = f"{file.name} part {at}"
            if head.startswith("<<< 200 text/event-stream"):
                Endpoint.body = body.encode()
                ended += judge_stream(place, client, body)
                streams += 1
            elif head.startswith(("||| 200", "<<< 200")):
                judge_whole(place, body)
                wholes += 1
            elif head.startswith(">>>"):
                judge_request(place, body, created, items, tools)
                requests += 1
    server.shutdown()
    assert ended > 30 and wholes > 20 and requests > 30, (streams, ended, wholes, requests)
    print(f"responses: {streams} streams, {wholes} answers and {requests} requests are valid for openai {openai.__version__}")


if __name__ == "__main__":
    sys.exit(main())
