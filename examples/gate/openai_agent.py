"""An agent of the OpenAI Agents SDK whose tools pass a gate: a decorator asks before each call."""

import asyncio
import functools
import json

from agents import Agent, function_tool
from agents.tool_context import ToolContext
from hold import guarded


def gated(function):
    """A tool that runs only when the gate allows its call."""
    tool = function_tool(function, failure_error_function=None)  # an error is raised, so `guarded` reports it
    invoke = tool.on_invoke_tool

    async def ask(context: ToolContext, text: str) -> str:
        def run(args: dict) -> str:
            return asyncio.run(invoke(context, json.dumps(args)))

        key = f"openai:{context.tool_call_id}"
        return await asyncio.to_thread(functools.partial(guarded, tool.name, json.loads(text), key, run))

    tool.on_invoke_tool = ask
    return tool


@gated
def refund(order: int, amount: float) -> str:
    """Pay an order back."""
    return f"Refunded {amount} for order {order}."


def agent(model) -> Agent:
    return Agent(name="refunds", instructions="You handle refunds.", tools=[refund], model=model)
