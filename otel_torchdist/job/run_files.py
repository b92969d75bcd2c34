"""Small JSON files of a job directory, one of a kind for each run: those of earlier attempts are bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from otel_torchdist.files.owned import remove, replace_at_once

MAX_FILES: Final = 16
"""Of one kind, the newest."""


def run_file(directory: Path, kind: str, run: int) -> Path:
    """Return the path of the file of a run."""
    return directory / f"{kind}-{run:032x}.json"


def write_run_file(directory: Path, kind: str, run: int, document: Any) -> None:
    """Replace the file of a run at once.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    path = run_file(directory, kind, run)
    replace_at_once(path, path.with_name(f".{path.name}.new"), json.dumps(document).encode())
    for old in sorted(directory.glob(f"{kind}-*.json"), key=_changed_ns)[:-MAX_FILES]:
        remove(old)


def _changed_ns(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0
