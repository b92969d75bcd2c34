"""`otel-torchdist build-native`: builds the library that records calls without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.native.build import NoToolError, build
from otel_torchdist.native.library import NativeError, library_cache
from otel_torchdist.native.trust import why_not_trusted
from otel_torchdist.system.progress import progress


def build_native(
    to: Annotated[
        Path | None, typer.Option("--to", help="Build into this folder instead of the user's.", metavar="FOLDER")
    ] = None,
) -> None:
    """Build the native library for the installed torch, with this machine's C++ compiler.

    The library then records calls in under a microsecond each and without the GIL. Building takes half a minute; do it
    before a job starts, not in its ranks. Wheels for Linux contain libraries for released versions of torch, so you
    need this command only for nightly builds of torch and for your own.
    """
    folder = to or library_cache()
    try:
        with progress("Compiling"):
            library = build(folder)
        why = "" if to else why_not_trusted(library)
        if why:
            raise NativeError(f"{library} was built, but would not be used: it {why}")
    except NoToolError as error:
        _end(f"{error}", ExitCode.UNAVAILABLE)
    except NativeError as error:
        _end(f"{error}", ExitCode.NOT_BUILT)
    except OSError as error:
        _end(f"{folder} cannot be written to: {error.strerror}", ExitCode.NOT_WRITTEN)
    typer.echo(f"{library}, {library.stat().st_size >> 10} KiB")


def _end(reason: str, code: ExitCode) -> NoReturn:
    typer.echo(f"otel-torchdist: {reason}", err=True)
    raise typer.Exit(code) from None
