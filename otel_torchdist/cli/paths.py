"""How paths are shown."""

from __future__ import annotations

import os
from pathlib import Path


def shown(path: Path | str) -> str:
    """A path as one would type it here: relative where it lies below the current directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
