"""The server of the Model Context Protocol: tools, runbook pages as resources, and a prompt."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

import mcp_types as types
from anyio import from_thread, to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from otel_torchdist.cli.mcp.guidance import (
    HANG_DESCRIPTION,
    HANG_PROMPT,
    HANG_TITLE,
    INSTRUCTIONS,
    hang_steps,
)
from otel_torchdist.cli.mcp.pages import MARKDOWN, PAGES, address_of, text_of, title_of
from otel_torchdist.cli.mcp.schemas import schema_of
from otel_torchdist.cli.mcp.tools import AssistantTool
from otel_torchdist.errors import RunError, TorchDistError
from otel_torchdist.model.text import readable

MAX_MESSAGE: Final = 4_000
"""Upper bound on the characters of an error, which may contain file names."""
_logger: Final = logging.getLogger("otel_torchdist")


class _Handlers:
    """Answers requests. Tools run in threads, one after the other: an analysis may need much memory."""

    def __init__(self, tools: Mapping[str, AssistantTool]) -> None:
        self._tools = tools
        self._turn = threading.Lock()

    async def list_tools(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_listed(tool) for tool in self._tools.values()])

    async def call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"no tool {readable(params.name)}: there are {', '.join(self._tools)}")
        arguments = params.arguments or {}
        try:
            answer = await to_thread.run_sync(self._called, tool, arguments, abandon_on_cancel=True)
        except TorchDistError as error:
            warnings = error.warnings if isinstance(error, RunError) else ()
            return _failed("; ".join([str(error), *warnings]))
        except Exception as error:
            # The assistant can do nothing with a traceback; the client's log has it.
            _logger.exception("the tool %s failed", tool.name)
            return _failed(f"{tool.name}: internal error: {type(error).__name__}; the server's log has the details")
        text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=answer)

    def _called(self, tool: AssistantTool, arguments: dict[str, Any]) -> Any:
        """Call a tool when all earlier calls have ended, also those that their clients gave up."""
        with self._turn:
            from_thread.check_cancelled()
            return tool.call(arguments)

    async def list_resources(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        pages = [
            types.Resource(name=name, title=title_of(name), uri=address_of(name), mime_type=MARKDOWN) for name in PAGES
        ]
        return types.ListResourcesResult(resources=pages)

    async def read_resource(
        self, context: ServerRequestContext[Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            text = text_of(params.uri)
        except TorchDistError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        page = types.TextResourceContents(uri=params.uri, mime_type=MARKDOWN, text=text)
        return types.ReadResourceResult(contents=[page])

    async def list_prompts(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        job = types.PromptArgument(
            name="job", description="The first digits of a run's id, a path, or words for the job", required=False
        )
        prompt = types.Prompt(name=HANG_PROMPT, title=HANG_TITLE, description=HANG_DESCRIPTION, arguments=[job])
        return types.ListPromptsResult(prompts=[prompt])

    async def get_prompt(
        self, context: ServerRequestContext[Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        if params.name != HANG_PROMPT:
            raise MCPError(types.INVALID_PARAMS, f"no prompt {readable(params.name)}: there is {HANG_PROMPT}")
        text = hang_steps((params.arguments or {}).get("job", ""))
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=HANG_DESCRIPTION, messages=[message])


def server_of(tools: Mapping[str, AssistantTool]) -> Server[Any]:
    """Return the server that offers these tools."""
    handlers = _Handlers(tools)
    return Server(
        "otel-torchdist",
        version=metadata.version("otel-torchdist"),
        title="otel_torchdist",
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
    )


def _listed(tool: AssistantTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema_of(tool.question),
        output_schema=schema_of(tool.answer),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.is_read_only,
            destructive_hint=False,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


def _failed(message: str) -> types.CallToolResult:
    line = readable(" ".join(message.split()), MAX_MESSAGE)
    return types.CallToolResult(content=[types.TextContent(text=line)], is_error=True)
