"""Virtual environments in which a release is tried."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

_OF_A_SHELL: Final = ("PYTHON", "VIRTUAL_ENV", "CONDA", "CXX", "CC", "OTEL_")
"""Prefixes of variables that would change an installation, or give it a compiler."""
OUR_FILES: Final = ("otel_torchdist", "_editable_impl_otel_torchdist")


def new_environment(python: Path, folder: Path, *options: str, lent: Path | None = None) -> Path:
    """Make an empty virtual environment; return its Python.

    Args:
        python: The Python that it is made of.
        folder: The folder to make.
        options: Further options of `venv`.
        lent: A folder with packages that it sees, too.

    Raises:
        subprocess.CalledProcessError: It cannot be made.
    """
    command = [str(python), "-m", "venv", *options, str(folder)]
    subprocess.run(command, env=without_compiler(folder), capture_output=True, text=True, check=True)
    if lent:
        (site_packages(folder) / "lent.pth").write_text(f"{lent}\n")
    return folder / "bin" / "python"


def without_compiler(environment: Path) -> dict[str, str]:
    """Return the variables of a shell in which an environment is active, and which has no other program.

    pip's own variables stay: they name the index.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_SHELL)}
    return {**kept, "PATH": str(environment / "bin")}


def lend_packages(packages: Path, folder: Path, *without: str) -> Path:
    """Make a folder of links to the packages of another environment, except otel_torchdist and those named."""
    folder.mkdir()
    for package in packages.iterdir():
        if package.name.partition("-")[0].partition(".")[0] not in (*OUR_FILES, *without):
            (folder / package.name).symlink_to(package)
    return folder


def site_packages(environment: Path) -> Path:
    """Return the folder of an environment's own packages."""
    [found] = environment.glob("lib/python*/site-packages")
    return found
