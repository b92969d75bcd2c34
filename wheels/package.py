"""Packs wheels and the source distribution, with hatchling."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from hatch_build import LIBRARIES

_ROOT: Final = Path(__file__).parents[1]


def platform_wheel(libraries: Path, to: Path) -> Path:
    """Pack the wheel for a platform.

    Args:
        libraries: A folder with the libraries for it, and with its name.
        to: Where the wheel goes.
    """
    return _hatchling(to, {LIBRARIES: str(libraries.resolve())}, "wheel")


def pure_wheel(to: Path) -> Path:
    """Pack the wheel for all other machines, which has no libraries."""
    return _hatchling(to, {LIBRARIES: ""}, "wheel")


def source_distribution(to: Path) -> Path:
    """Pack the sources."""
    return _hatchling(to, {LIBRARIES: ""}, "sdist")


def _hatchling(to: Path, environ: dict[str, str], target: str) -> Path:
    """Run hatchling's own command; returns the file that it has made, which it names on its last line.

    Raises:
        subprocess.CalledProcessError: It has failed.
    """
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(to.resolve())]
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, **environ}, stderr=subprocess.PIPE, text=True, check=True
    )
    return _ROOT / done.stderr.splitlines()[-1]  # a path in the project is relative
