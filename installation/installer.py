"""Finds the program that installs packages into the environment of this Python: pip, or uv if there is no pip."""

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
    """There is neither pip nor uv."""


@dataclass(frozen=True)
class Installer:
    """A command that installs packages.

    Attributes:
        command: The command line without the packages.
    """

    command: list[str]

    def install(self, package: str, environ: dict[str, str], *options: str) -> int:
        """Run the command, with its output on this terminal; return its exit code."""
        # Not in the checkout: `python -m` would import modules from there.
        return subprocess.run([*self.command, *options, package], env=environ, cwd="/", check=False).returncode


def find_installer(scratch: Path) -> Installer:
    """Return this environment's pip, else uv, else the pip of a new virtual environment in `scratch`.

    Raises:
        NoInstallerError: None of them is available.
    """
    if importlib.util.find_spec("pip"):
        return Installer(
            [sys.executable, "-m", "pip", "install", *_in_place(importlib.import_module("pip").__version__)]
        )
    uv = shutil.which("uv")
    if uv:
        # Without `--reinstall-package`, uv installs a folder again only if pyproject.toml has changed.
        return Installer([uv, "pip", "install", "--python", sys.executable, "--reinstall-package", DISTRIBUTION])
    return Installer([str(_python_with_pip(scratch)), "-m", "pip", "--python", sys.executable, "install"])


def _in_place(pip: str) -> list[str]:
    """Return options that keep pip 21.1 and 21.2 from copying the whole folder, including `.venv` with torch."""
    return ["--use-feature=in-tree-build"] if pip.startswith(("21.1", "21.2")) else []


def _python_with_pip(scratch: Path) -> Path:
    folder = scratch / "pip"
    try:
        venv.create(folder, with_pip=True, symlinks=True)
    except (subprocess.CalledProcessError, OSError) as error:
        message = f"{sys.executable} has no pip, and there is no uv: install one of them"
        raise NoInstallerError(message) from error
    return folder / "bin" / "python"
