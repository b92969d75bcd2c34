"""Builds wheels and the source distribution with hatchling."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from hatch_build import LIBRARIES

_ROOT: Final = Path(__file__).parents[1]


def platform_wheel(libraries: Path, to: Path) -> Path:
    """Build the wheel for a platform.

    Args:
        libraries: Folder with the libraries for the platform, named after it.
        to: Output folder.
    """
    return _hatchling(to, {LIBRARIES: str(libraries.resolve())}, "wheel")


def pure_wheel(to: Path) -> Path:
    """Build the wheel without libraries, for all other platforms."""
    return _hatchling(to, {LIBRARIES: ""}, "wheel")


def source_distribution(to: Path) -> Path:
    """Build the source distribution."""
    return _hatchling(to, {LIBRARIES: ""}, "sdist")


def _hatchling(to: Path, environ: dict[str, str], target: str) -> Path:
    """Run hatchling; return the built file, whose path is its last line of output.

    Raises:
        subprocess.CalledProcessError: hatchling has failed.
    """
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(to.resolve())]
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, **environ}, stderr=subprocess.PIPE, text=True, check=True
    )
    return _ROOT / done.stderr.splitlines()[-1]  # relative to the project, unless it is outside
