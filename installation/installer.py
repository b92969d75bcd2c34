"""The program that installs packages into the environment of this Python: pip, or uv where there is no pip."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTION = "otel-torchdist"


class NoInstallerError(Exception):
    """There is neither pip nor uv; the message says so."""


@dataclass(frozen=True)
class Installer:
    """A command that installs packages.

    Attributes:
        command: Its words, up to the packages.
    """

    command: list[str]

    def install(self, package: str, environ: dict[str, str], *options: str) -> int:
        """Run it, with its output on this terminal; return its exit code."""
        # Not in the checkout: `python -m` would import what is there.
        return subprocess.run([*self.command, *options, package], env=environ, cwd="/", check=False).returncode


def find_installer(scratch: Path) -> Installer:
    """Return this environment's pip, else uv, else a pip in a virtual environment that is made in `scratch`.

    Raises:
        NoInstallerError: There is none.
    """
    if importlib.util.find_spec("pip"):
        return Installer(
            [sys.executable, "-m", "pip", "install", *_in_place(importlib.import_module("pip").__version__)]
        )
    uv = shutil.which("uv")
    if uv:
        # uv installs a folder again only if pyproject.toml has changed.
        return Installer([uv, "pip", "install", "--python", sys.executable, "--reinstall-package", DISTRIBUTION])
    return Installer([str(_python_with_pip(scratch)), "-m", "pip", "--python", sys.executable, "install"])


def _in_place(pip: str) -> list[str]:
    """Return options with which pip 21.2 does not copy the folder that it installs, `.venv` with torch included."""
    return ["--use-feature=in-tree-build"] if pip.startswith(("21.1", "21.2")) else []


def _python_with_pip(scratch: Path) -> Path:
    folder = scratch / "pip"
    try:
        venv.create(folder, with_pip=True, symlinks=True)
    except (subprocess.CalledProcessError, OSError) as error:
        message = f"{sys.executable} has no pip, and there is no uv: install one of them"
        raise NoInstallerError(message) from error
    return folder / "bin" / "python"
