"""The command line, `otel-torchdist`; its libraries come with the extra `cli`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from importlib import import_module
from typing import Final

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.system.this_process.commands import freezing_imports

_LIBRARIES: Final = ("rich", "typer")


def main() -> None:
    """Run the command line; the console script."""
    try:
        with freezing_imports():
            for library in _LIBRARIES:  # commands are imported later, when they are used
                import_module(library)
            from otel_torchdist.cli.app import app
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LIBRARIES:
            raise
        print(f"otel-torchdist: {library} is not installed: pip install 'otel-torchdist[cli]'", file=sys.stderr)
        sys.exit(ExitCode.UNAVAILABLE)
    _escape_unencodable()
    try:
        app()
    except Exception:
        with contextlib.suppress(OSError):  # a terminal that is gone
            traceback.print_exc()
        sys.exit(ExitCode.INTERNAL_ERROR)
    finally:
        _discard_dead_streams()


def _escape_unencodable() -> None:
    """Write characters that the stream's encoding lacks as escapes; function and file names may contain them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_dead_streams() -> None:
    """Redirect a stream to /dev/null if its terminal is gone; otherwise Python exits with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
