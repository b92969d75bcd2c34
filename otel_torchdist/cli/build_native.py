"""`otel-torchdist build-native`: builds the library that records calls without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.native.build import build
from otel_torchdist.native.library import NativeError, library_cache
from otel_torchdist.native.trust import why_not_trusted


def build_native(
    to: Annotated[
        Path | None, typer.Option("--to", help="Another folder than that of this user's libraries.", metavar="FOLDER")
    ] = None,
) -> None:
    """Build the native library for the torch that is installed here, with this machine's C++ compiler.

    From then on, calls are recorded by it: in under a microsecond, and without the GIL. Takes half a minute.
    """
    try:
        made = build(to or library_cache())
        why = "" if to else why_not_trusted(made)
        if why:
            raise NativeError(f"{made} was built, and would not be used: it {why}")
    except NativeError as error:
        typer.echo(f"otel-torchdist: {error}", err=True)
        raise typer.Exit(ExitCode.UNAVAILABLE) from None
    except OSError as error:
        typer.echo(f"otel-torchdist: {error}", err=True)
        raise typer.Exit(ExitCode.NOT_WRITTEN) from None
    typer.echo(f"{made}, {made.stat().st_size >> 10} KiB")
