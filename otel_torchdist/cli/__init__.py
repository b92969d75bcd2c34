"""The command line, `otel-torchdist`; its libraries come with the extra `cli`."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Final

_LIBRARIES: Final = ("rich", "typer")


def main() -> None:
    """Run the command line; the console script."""
    try:
        from otel_torchdist.cli.app import app
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LIBRARIES:
            raise
        sys.exit(f"otel-torchdist: {library} is not installed: pip install 'otel-torchdist[cli]'")
    from otel_torchdist.cli.text import INTERNAL_ERROR

    _write_whatever_comes()
    try:
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(INTERNAL_ERROR)
    finally:
        _leave_dead_streams()


def _write_whatever_comes() -> None:
    """Escape what the terminal's encoding lacks: names of functions and files may contain it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_dead_streams() -> None:
    """Discard what cannot be written to a terminal that is gone; Python would exit with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
