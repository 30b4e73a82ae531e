"""A LangChain agent whose tools pass a gate: a middleware asks before each call."""

from hold import guarded
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain.messages import ToolMessage
from langchain.tools import tool


@tool
def refund(order: int, amount: float) -> str:
    """Pay an order back."""
    return f"Refunded {amount} for order {order}."


@wrap_tool_call
def gate(request, handler):
    call = request.tool_call

    def run(args: dict) -> str:
        message = handler(request.override(tool_call={**call, "args": args}))
        if message.status == "error":  # `guarded` reports that the outcome is unknown
            raise RuntimeError(message.content)
        return message.content

    content = guarded(call["name"], call["args"], f"langchain:{call['id']}", run)
    return ToolMessage(content=content, tool_call_id=call["id"])


def agent(model):
    return create_agent(model, tools=[refund], middleware=[gate])
