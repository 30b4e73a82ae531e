"""A scripted model behind the Messages API and the Responses API, on loopback."""

import json
import os
import threading
import traceback
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Iterator

Call = tuple[str, Any]
# The calls that the model makes in one answer, or a function from the results of earlier calls to these calls.
Step = list[Call] | Callable[[list[str]], list[Call]]
LAST_WORD = "finished"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


class FakeModel(ThreadingHTTPServer):
    """Finds the play whose name is in the first message of a conversation. Each answer is the next step of the play.
    After the last step, the model ends the conversation."""

    daemon_threads = True

    def __init__(self, plays: dict[str, list[Step]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plays = plays
        self.told: dict[str, list[str]] = {word: [] for word in plays}
        self.offered: dict[str, dict] = {}  # the arguments of each tool, by its name
        self.others: list[str] = []  # requests for other hosts, for which this server is the proxy
        self.mistakes: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *request: object) -> None:
        """Ignores the error, because a client may disconnect early."""

    def calls(self, conversation: str, told: list[str], answers: int) -> list[Call]:
        word = next((word for word in self.plays if word in conversation), None)
        if word is None:
            return []
        self.told[word] = told
        steps = self.plays[word]
        if answers >= len(steps):
            return []
        step = steps[answers]
        return step(told) if callable(step) else step


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeModel

    def log_message(self, *words: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        path = self.path.split("?")[0]
        answer = {MESSAGES: messages_answer, RESPONSES: responses_answer}.get(path)
        if answer is None:
            return self.no_such_page()
        try:
            events = answer(self.server, body)
        except Exception:  # noqa: BLE001
            self.server.mistakes.append(traceback.format_exc())
            return self.say(500, "application/json", "{}")
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.say(200, "text/event-stream", text)

    def no_such_page(self) -> None:
        if not self.path.startswith("/"):
            self.server.others.append(f"{self.command} {self.path}")
        self.say(404, "application/json", "{}")

    do_GET = do_HEAD = do_CONNECT = no_such_page

    def say(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def new_id() -> str:
    return os.urandom(8).hex()


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def blocks(message: dict) -> list[dict]:
    return [] if isinstance(message["content"], str) else message["content"]


def messages_answer(model: FakeModel, body: dict) -> list[dict]:
    turns = body["messages"]
    results = [[block for block in blocks(turn) if block["type"] == "tool_result"] for turn in turns]
    told = [text_of(block["content"]) for blocks in results for block in blocks]
    model.offered |= {tool["name"]: tool["input_schema"] for tool in body.get("tools", []) if "input_schema" in tool}
    conversation = json.dumps(turns[0]["content"])
    number = sum(map(bool, results))
    calls = model.calls(conversation, told, number) if body.get("tools") else []
    said: list[dict] = [
        {"type": "tool_use", "id": f"toolu_{new_id()}", "name": name, "input": arguments} for name, arguments in calls
    ]
    return message_events(body["model"], said or [{"type": "text", "text": LAST_WORD}])


def message_events(model: str, said: list[dict]) -> list[dict]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    # Claude Code would merge messages with the same id into one message, so each message gets a new id.
    start = {"id": f"msg_{new_id()}", "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    events: list[dict] = [{"type": "message_start", "message": start | {"stop_reason": None, "stop_sequence": None}}]
    for at, block in enumerate(said):
        if block["type"] == "tool_use":
            empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        events.append({"type": "content_block_start", "index": at, "content_block": block | empty})
        events.append({"type": "content_block_delta", "index": at, "delta": delta})
        events.append({"type": "content_block_stop", "index": at})
    reason = "tool_use" if said[0]["type"] == "tool_use" else "end_turn"
    end = {"stop_reason": reason, "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]


def responses_answer(model: FakeModel, body: dict) -> list[dict]:
    items = body["input"]
    told = [text_of(item["output"]) for item in items if item.get("type", "").endswith("_call_output")]
    # Calls of one answer have the same number in their ids.
    number = len({item["call_id"].split("_")[1] for item in items if item.get("type", "").endswith("_call_output")})
    conversation = json.dumps([item for item in items if item.get("role") == "user"])
    calls = model.calls(conversation, told, number)
    said: list[dict] = [response_item(f"call_{number}_{new_id()}", *call) for call in calls]
    text = {"type": "output_text", "text": LAST_WORD}
    said = said or [{"type": "message", "role": "assistant", "id": f"msg_{number}", "content": [text]}]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return [
        {"type": "response.created", "response": {"id": f"resp_{number}"}},
        *({"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(said)),
        {"type": "response.completed", "response": {"id": f"resp_{number}", "usage": usage}},
    ]


def response_item(call_id: str, name: str, arguments: Any) -> dict:
    if isinstance(arguments, str):
        return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": arguments}
    space, _, own = name.rpartition("/")
    item = {"type": "function_call", "call_id": call_id, "name": own, "arguments": json.dumps(arguments)}
    return item | ({"namespace": space} if space else {})


@contextmanager
def fake_model(plays: dict[str, list[Step]]) -> Iterator[FakeModel]:
    model = FakeModel(plays)
    thread = threading.Thread(target=model.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        model.shutdown()
        thread.join()
        model.server_close()
