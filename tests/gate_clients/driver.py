"""Lists or calls tools of a gate with a client for Python. Prints as JSON how the client reports the reply. The
argument is JSON: `kind`, `url`, `headers`, `timeout` of the client in seconds (null for the client's default), and
`call`, a tool and its arguments."""

import asyncio
import json
import os
import sys
from typing import Any

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
ASK = json.loads(sys.argv[1])
URL, HEADERS, TIMEOUT, CALL = ASK["url"], ASK["headers"], ASK["timeout"], ASK.get("call")


def told(result: Any) -> dict:
    is_error = getattr(result, "is_error", getattr(result, "isError", None))
    structured = getattr(result, "structured_content", getattr(result, "structuredContent", None))
    texts = [block.text for block in result.content if block.type == "text"]
    return {"error": is_error, "text": "\n".join(texts), "structured": structured}


async def sdk(mode: str, target: Any) -> dict:
    from mcp import Client

    progress: list[str] = []

    async def show(_: float, __: float | None, message: str | None) -> None:
        progress.append(message or "")

    async with Client(target, mode=mode, read_timeout_seconds=TIMEOUT) as client:
        if not CALL:
            return {"tools": [tool.name for tool in (await client.list_tools()).tools]}
        call = client.call_tool(*CALL, progress_callback=show if ASK.get("progress") else None)
        if "leaves" in ASK:
            try:
                await asyncio.wait_for(call, ASK["leaves"])
            except TimeoutError:
                return {"left": True}
        return told(await call) | {"progress": progress}


async def mcp() -> dict:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async with httpx2.AsyncClient(headers=HEADERS, timeout=60) as client:
        return await sdk(ASK["mode"], streamable_http_client(URL, http_client=client))


async def mcp_remote() -> dict:
    from mcp import StdioServerParameters

    node, script = ASK["bridge"]
    words = [word for name, value in HEADERS.items() for word in ("--header", f"{name}:{value}")]
    arguments = [script, URL, "--allow-http", "--transport", "http-only", *words]
    return await sdk("legacy", StdioServerParameters(command=node, args=arguments, env=dict(os.environ)))


async def fastmcp() -> dict:
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    async with Client(StreamableHttpTransport(URL, headers=HEADERS), timeout=TIMEOUT) as client:
        if not CALL:
            return {"tools": [tool.name for tool in await client.list_tools()]}
        return told(await client.call_tool(*CALL, raise_on_error=False))


async def pydantic_ai() -> dict:
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    tools: list[str] = []

    def model(messages: list, info: Any) -> ModelResponse:
        tools[:] = [tool.name for tool in info.function_tools]
        parts = [part for part in messages[-1].parts if part.part_kind in ("tool-return", "retry-prompt")]
        if CALL and not parts:
            return ModelResponse([ToolCallPart(*CALL)])
        return ModelResponse([TextPart(str(parts[0].content) if parts else "Done.")])

    toolset = MCPToolset(URL, headers=HEADERS, read_timeout=TIMEOUT)
    done = await Agent(FunctionModel(model), toolsets=[toolset]).run("Go")
    return {"tools": tools, "text": done.output}


async def openai_agents() -> dict:
    from agents import Agent, ModelResponse, Runner, Usage
    from agents.mcp import MCPServerStreamableHttp
    from agents.models.interface import Model
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    seen: dict = {}

    class Scripted(Model):
        async def get_response(self, system_instructions: Any, input: Any, *others: Any, **named: Any) -> ModelResponse:
            seen["tools"] = [tool.name for tool in next((item for item in others if isinstance(item, list)), [])]
            outputs = [item["output"] for item in input if isinstance(item, dict) and "output" in item]
            output: Any
            if CALL and not outputs:
                arguments = json.dumps(CALL[1])
                output = ResponseFunctionToolCall(type="function_call", name=CALL[0], arguments=arguments, call_id="c")
            else:
                seen["text"] = str(outputs)
                text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
                output = ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed", content=[text]
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    # The client keeps its default timeout of 5 s.
    async with MCPServerStreamableHttp({"url": URL, "headers": HEADERS}) as server:
        seen["tools"] = [tool.name for tool in await server.list_tools()]
        listed = seen["tools"]
        await Runner.run(Agent("agent", model=Scripted(), mcp_servers=[server]), "Go")
    return seen | {"tools": listed}


async def langchain() -> dict:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    place = {"transport": "streamable_http", "url": URL, "headers": HEADERS}
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"gate": place}).get_tools()}
    if not CALL:
        return {"tools": list(tools)}
    return {"text": str(await tools[CALL[0]].ainvoke(CALL[1]))}


async def main() -> None:
    try:
        said = await globals()[ASK["kind"]]()
    except BaseException as error:  # noqa: BLE001
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = {"thrown": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)


asyncio.run(main())
