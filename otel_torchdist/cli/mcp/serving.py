"""Serves one client over standard input and output, until the client is gone or a signal arrives."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.system.this_process.commands import StopSignals

BETWEEN_CHECKS_S: Final = 1.0
"""Seconds between two checks whether the client still reads."""


def serve(server: Server[Any], clean_up: Callable[[], None]) -> NoReturn:
    """Serve, and end this process.

    Args:
        server: The server.
        clean_up: Called before the end.
    """
    with StopSignals() as stop:
        anyio.run(_serve, server, stop, clean_up)
    _end(ExitCode.SUCCESS, clean_up)


async def _serve(server: Server[Any], stop: StopSignals, clean_up: Callable[[], None]) -> None:
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_on_signal, stop, clean_up)
            tasks.start_soon(_end_without_reader, os.dup(sys.stdout.fileno()), clean_up)
            async with stdio_server() as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())
            _end(ExitCode.SUCCESS, clean_up)
    except Exception as error:
        if not _is_of_dead_client(error):
            raise
        _end(ExitCode.BROKEN_PIPE, clean_up)


async def _end_on_signal(stop: StopSignals, clean_up: Callable[[], None]) -> None:
    await anyio.wait_readable(stop)
    if stop.received is not None:
        _end(ExitCode.of_signal(stop.received), clean_up)


async def _end_without_reader(output: int, clean_up: Callable[[], None]) -> None:
    """End this process once nobody reads its output.

    The SDK cannot: after a failed write it waits for its thread that reads standard input.

    Args:
        output: Descriptor of standard output. The SDK moves the usual one.
        clean_up: See `serve`.
    """
    poll = select.poll()
    poll.register(output, 0)
    while not poll.poll(0):
        await anyio.sleep(BETWEEN_CHECKS_S)
    await anyio.sleep(BETWEEN_CHECKS_S)  # a client that closes both sides ends this process as usual
    _end(ExitCode.BROKEN_PIPE, clean_up)


def _end(code: ExitCode, clean_up: Callable[[], None]) -> NoReturn:
    """End this process at once.

    A thread blocks in reading standard input, which only the client can end, and another may read tapes. Python would
    wait for both.
    """
    clean_up()
    sys.stderr.flush()
    os._exit(code)


def _is_of_dead_client(error: BaseException) -> bool:
    """Return whether an error, or one in a group of errors, is a write to a client that is gone."""
    errors: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return isinstance(error, BrokenPipeError) or any(map(_is_of_dead_client, errors))
