"""The Pythons on which the suites run: named by PYTHONS, or found on this machine or in a Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.pythons.debian import SUITE, VERSIONS, Debian

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-torchdist" / "pythons"
USUAL: Final = ("3.10", "3.11", "3.12", "3.13")
_TORCH_OF: Final = {"3.10": "2.14.1"}
"""Newest torch with wheels for a Python, where that is not the newest of all."""
_ASKED: Final = "import sys; print(sys.version.split()[0])"


@dataclass(frozen=True)
class Interpreter:
    """A Python.

    Attributes:
        path: Its executable, in `debian` if that is set.
        version: `3.14.2`.
        debian: The Debian that it belongs to; None for this machine.
    """

    path: str
    version: str
    debian: Debian | None = None

    @property
    def name(self) -> str:
        """`3.14`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def torch(self) -> str:
        """The version of torch to install."""
        return _TORCH_OF.get(self.name, os.environ.get("TORCH", ""))

    @property
    def environment(self) -> Path:
        """The folder of its virtual environment."""
        folder = Path("/pythons") if self.debian is not None else CACHE / "environments"
        return folder / f"{self.name}-torch{self.torch}"

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` where this interpreter can run."""
        return list(command) if self.debian is None else self.debian.command(command)


def asked(path: str, debian: Debian | None = None) -> Interpreter | None:
    """Return an interpreter; None if it cannot run."""
    command = [path, "-c", _ASKED]
    try:
        done = subprocess.run(
            command if debian is None else debian.command(command), capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return Interpreter(path, done.stdout.strip(), debian) if not done.returncode else None


def found() -> tuple[list[Interpreter], list[str]]:
    """Return the interpreters, and for each that is missing a line with the reason.

    PYTHONS chooses some by their names, such as `3.14,3.15`, or adds the paths of others.
    """
    chosen = [one for one in os.environ.get("PYTHONS", "").split(",") if one]
    paths = [(path, asked(path)) for path in chosen if os.sep in path]
    interpreters, missing = _found_by_name()
    if chosen:
        interpreters = [one for one in interpreters if one.name in chosen]
        missing = [line for line in missing if line.partition(":")[0] in chosen]
    missing += [f"{path}: it cannot be run" for path, one in paths if not one]
    return interpreters + [one for _, one in paths if one], missing


def _found_by_name() -> tuple[list[Interpreter], list[str]]:
    here = [(name, _on_this_machine(name)) for name in USUAL]
    debian = Debian(CACHE / SUITE)
    there = [
        (name, asked(f"python{name}", debian) if debian.is_complete and os.geteuid() == 0 else None)
        for name in VERSIONS
    ]
    interpreters = [one for one in (*(one for _, one in here), *(one for _, one in there)) if one]
    missing = [f"{name}: there is no python{name} in PATH" for name, one in here if not one]
    missing += [f"{name}: {_why_not(debian)}" for name, one in there if not one]
    return interpreters, missing


def _on_this_machine(name: str) -> Interpreter | None:
    path = shutil.which(f"python{name}")
    return asked(path) if path else None


def _why_not(debian: Debian) -> str:
    if not debian.is_complete:
        return f"there is no Debian in {debian.root}; `make pythons` creates it"
    return f"only root can run programs in {debian.root}" if os.geteuid() else f"it does not run in {debian.root}"
