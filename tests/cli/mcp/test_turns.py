"""Tools run one after the other, whatever clients give up meanwhile."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.commands.assistant import need_sdk

need_sdk()
anyio = pytest.importorskip("anyio")
types = pytest.importorskip("mcp_types")


def test_call_that_was_given_up() -> None:
    """It ends before the next one starts; a call that is given up while it waits for its turn never starts."""
    from otel_torchdist.cli.mcp.server import _Handlers

    may_end, running, started = threading.Event(), threading.Event(), list[str]()

    def call(arguments: dict[str, Any]) -> dict[str, Any]:
        assert not running.is_set(), "two tools at a time"
        running.set()
        started.append(arguments["of"])
        may_end.wait(30)
        running.clear()
        return {}

    handlers = _Handlers({"slow": SimpleNamespace(name="slow", call=call)})  # type: ignore[dict-item]

    async def ask(of: str) -> None:
        await handlers.call_tool(None, types.CallToolRequestParams(name="slow", arguments={"of": of}))  # type: ignore[arg-type]

    async def clients() -> None:
        for of in ("given up at work", "given up in the queue"):
            with anyio.move_on_after(0.3):
                await ask(of)
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "patient")
            await anyio.sleep(0.2)
            assert started == ["given up at work"]
            may_end.set()

    anyio.run(clients)
    assert started == ["given up at work", "patient"]
