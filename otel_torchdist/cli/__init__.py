"""The command line, `otel-torchdist`; its libraries come with the extra `cli`."""

from __future__ import annotations

import sys
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
    app()
