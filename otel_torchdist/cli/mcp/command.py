"""`otel-torchdist mcp`: its options."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.mcp.roots import ReadableRoots
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.cli.mcp.tools import tools_for
from otel_torchdist.cli.output.text import fail
from otel_torchdist.config import Config


def mcp(
    directories: Annotated[
        list[Path] | None,
        typer.Option(
            "--directory",
            metavar="DIRECTORY",
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="A directory that the assistant may read: tapes, archives, bundles, dumps, logs, reports. May be "
            "repeated. Without it: the directories of tapes, archives, bundles and dumps from the OTEL_* settings.",
            show_default=False,
        ),
    ] = None,
    allow_stacks: Annotated[
        bool,
        typer.Option("--allow-stacks", help="Let the assistant ask running ranks for new stacks."),
    ] = False,
) -> None:
    """For assistants: serve diagnoses, analyses and runbooks over the Model Context Protocol.

    The assistant's client starts this command, and talks to it over standard input and output. It changes nothing, and
    reads no path outside the directories.
    """
    if find_spec("mcp") is None or find_spec("mcp_types") is None:  # version 1 of the SDK has no `mcp_types`
        fail("the package mcp, version 2, is not installed: pip install 'otel-torchdist[mcp]'", ExitCode.UNAVAILABLE)
    from otel_torchdist.cli.mcp.server import server_of  # imports the package mcp, which takes a second
    from otel_torchdist.cli.mcp.serving import serve

    config = Config.from_environment()
    targets = RunTargets(ReadableRoots(directories or (), config), config)
    if sys.stdin.isatty():
        typer.echo(
            "otel-torchdist: waits on standard input for a client, which usually starts this command itself; Ctrl-C "
            "ends it",
            err=True,
        )
    serve(server_of(tools_for(targets, allow_stacks)), targets.close)
