"""An assistant's client, from the official SDK, that talks to `otel-torchdist mcp` over stdin and stdout."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.commands.running import SCRIPT, environment

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp.client.client import Client

_MISSING: Final = "needs the extra `mcp`: pip install '.[mcp]'"


def need_sdk() -> None:
    """Skip a test without the SDK; fail it in CI, where `make` installs the SDK."""
    if importlib.util.find_spec("mcp") is not None:
        return
    if os.environ.get("CI"):
        pytest.fail(_MISSING)
    pytest.skip(_MISSING)


class Assistant:
    """A connected client."""

    def __init__(self, client: Client, portal: BlockingPortal) -> None:
        """Use a client that runs in another thread."""
        self._client = client
        self._portal = portal

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, and return its answer; fails if it is an error. The SDK checks it against the tool's schema."""
        result = self._call(tool, arguments)
        text = result.content[0].text
        assert not result.is_error, text
        assert json.loads(text) == result.structured_content
        return result.structured_content

    def error_of(self, tool: str, **arguments: Any) -> str:
        """Call a tool that fails, and return its message, one line."""
        result = self._call(tool, arguments)
        [content] = result.content
        assert result.is_error, content.text
        assert "\n" not in content.text
        return content.text

    def tools(self) -> dict[str, Any]:
        """Return the listed tools by name."""
        return {tool.name: tool for tool in self._portal.call(self._client.list_tools).tools}

    def resources(self) -> dict[str, str]:
        """Return the titles of all resources, by address."""
        return {page.uri: page.title or "" for page in self._portal.call(self._client.list_resources).resources}

    def read(self, address: str) -> str:
        """Return the text of a resource."""
        [content] = self._portal.call(self._client.read_resource, address).contents
        return content.text  # type: ignore[union-attr]

    def prompt(self, name: str, **arguments: str) -> str:
        """Return the text of a prompt."""
        result = self._portal.call(self._client.get_prompt, name, arguments)
        return result.messages[0].content.text  # type: ignore[union-attr]

    def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return self._portal.call(self._client.call_tool, tool, arguments)


@contextmanager
def assistant(base: Path, *arguments: str | Path, **environ: str) -> Iterator[Assistant]:
    """Start a server as a client does, and talk to it until the end of this block.

    Args:
        base: Base directory of the tapes, from the server's environment.
        *arguments: Options of `otel-torchdist mcp`.
        **environ: Additions to the server's environment.
    """
    need_sdk()
    from anyio.from_thread import start_blocking_portal
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=str(SCRIPT),
        args=["mcp", *map(str, arguments)],
        env={**environment(base), "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000", **environ},
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(stdio_client(server))) as client,
    ):
        yield Assistant(client, portal)
