"""Runs the Python examples with scripted models. Each example makes an approved, an allowed and a rejected refund. A tool
of each framework raises an error: the example must not report that its call succeeded."""

import asyncio
import json
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

import hold
import langchain_agent
import openai_agent
from agents import ModelResponse, Runner, Usage
from agents.models.interface import Model
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import ToolException
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

CASES = [(15.0, "Refunded 15.0"), (120.0, "Refunded 120.0"), (999.0, "Not run: ")]


class ScriptedChat(FakeMessagesListChatModel):
    def bind_tools(self, tools, **_):
        return self


def langchain() -> None:
    for amount, expected in CASES:
        call = {"name": "refund", "args": {"order": 17, "amount": amount}, "id": f"l-{amount}"}
        model = ScriptedChat(responses=[AIMessage(content="", tool_calls=[call]), AIMessage(content="Done.")])
        answer = langchain_agent.agent(model).invoke({"messages": [{"role": "user", "content": "Refund"}]})
        texts = [message.content for message in answer["messages"]]
        assert texts[-1] == "Done." and texts[-2].startswith(expected), texts


class ScriptedModel(Model):
    def __init__(self, amount: float) -> None:
        self.amount, self.turn, self.seen = amount, 0, ""

    async def get_response(self, system_instructions, input, *_, **__):
        self.turn += 1
        self.seen = str(input)
        if self.turn == 1:
            arguments = json.dumps({"order": 18, "amount": self.amount})
            output = ResponseFunctionToolCall(
                type="function_call", name="refund", arguments=arguments, call_id=f"o-{self.amount}"
            )
        else:
            text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
            output = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


def openai() -> None:
    for amount, expected in CASES:
        model = ScriptedModel(amount)
        result = asyncio.run(Runner.run(openai_agent.agent(model), "Refund"))
        assert result.final_output == "Done.", result
        assert expected in model.seen, model.seen


def outcomes_of(run) -> list:
    """Runs a function. Returns the outcomes that the example reports meanwhile."""
    outcomes, post = [], hold.post

    def spy(path: str, body: dict, headers: dict) -> dict:
        if path == "/v1/gate/outcomes":
            outcomes.append(body["outcome"])
        return post(path, body, headers)

    hold.post = spy
    try:
        run()
    finally:
        hold.post = post
    return outcomes


def failing_langchain() -> None:
    @tool("refund")
    def raises(order: int, amount: float) -> str:
        """Pay an order back."""
        raise OSError("The connection was lost.")

    @tool("refund")
    def handles(order: int, amount: float) -> str:
        """Pay an order back."""
        raise ToolException("The connection was lost.")

    handles.handle_tool_error = True  # LangChain makes a message of the error
    for amount, failing in ((131.0, raises), (132.0, handles)):
        call = {"name": "refund", "args": {"order": 19, "amount": amount}, "id": f"l-{amount}"}
        model = ScriptedChat(responses=[AIMessage(content="", tool_calls=[call]), AIMessage(content="Done.")])
        agent = create_agent(model, tools=[failing], middleware=[langchain_agent.gate])
        outcomes = outcomes_of(lambda: agent.invoke({"messages": [{"role": "user", "content": "Refund"}]}))
        assert outcomes == ["unknown"], outcomes


def failing_openai() -> None:
    def refund(order: int, amount: float) -> str:
        """Pay an order back."""
        raise OSError("The connection was lost.")

    agent = openai_agent.agent(ScriptedModel(133.0))
    agent.tools = [openai_agent.gated(refund)]
    outcomes = outcomes_of(lambda: asyncio.run(Runner.run(agent, "Refund")))
    assert outcomes == ["unknown"], outcomes


def plain() -> None:
    runs = []
    pay = lambda args: runs.append(args) or "paid"  # noqa: E731
    assert hold.guarded("refund", {"order": 1, "amount": 121}, "py-1", pay) == "paid"
    assert hold.guarded("refund", {"order": 1, "amount": 121}, "py-1", pay).startswith("Not run: ")
    assert hold.guarded("refund", {"order": 1, "amount": 999}, "py-2", pay).startswith("Not run: ")
    assert runs == [{"order": 1, "amount": 121}], runs


def answered() -> None:
    """Asserts that the agent gets the result that a person gives for a call with an unknown outcome."""

    def raises(args: dict) -> str:
        raise OSError("The connection was lost.")

    runs = []
    hold.guarded("refund", {"order": 2, "amount": 127}, "py-3", raises)
    told = hold.guarded("refund", {"order": 2, "amount": 127}, "py-3", runs.append)
    assert told.startswith("Not run: ") and told.endswith("Paid by hand."), told
    assert not runs, runs


def guide() -> None:
    """Asserts that docs/gate.md names the versions with which the examples are tested."""
    here = Path(__file__).parent
    page = (here.parents[2] / "docs" / "gate.md").read_text()
    python = dict(re.findall(r"^pip install (\S+?)==(\S+)", page, re.MULTILINE))
    assert python == {name: version(name) for name in ("langchain", "openai-agents")}, python
    node = dict(re.findall(r"(\S+)@(\S+)", "".join(re.findall(r"^npm install .*", page, re.MULTILINE))))
    tested = json.loads((here.parent / "node" / "package.json").read_text())["dependencies"]
    assert node == {name: tested[name] for name in ("ai", "zod")}, node


guide()
for test in (plain, langchain, openai):
    test()
    print(f"{test.__name__}: allowed, approved, rejected", file=sys.stdout, flush=True)
for test in (failing_langchain, failing_openai):
    test()
    print(f"{test.__name__}: its outcome is reported as unknown", file=sys.stdout, flush=True)
answered()
print("answered: the agent gets the person's result", flush=True)
