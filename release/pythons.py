"""The Python interpreters on this machine on which a release is tried."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.version import ROOT

_CLASSIFIER: Final = re.compile(r'^ *"Programming Language :: Python :: (3\.\d+)",$', re.MULTILINE)
_PROBE: Final = "import platform, sys, venv, ensurepip; print(platform.python_version(), sys.executable)"


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine that can make virtual environments.

    Attributes:
        path: Its program, not a script that starts it, such as pyenv's.
        version: Its version, such as `3.12.1`.
    """

    path: Path
    version: str

    @property
    def minor(self) -> str:
        """Its minor version, such as `3.12`."""
        return minor_of(self.version)


def minor_of(version: str) -> str:
    """Return the minor version of a version."""
    return ".".join(version.split(".")[:2])


def supported_pythons(root: Path = ROOT) -> list[str]:
    """Return the supported minor versions of Python: the classifiers in pyproject.toml."""
    return _CLASSIFIER.findall((root / "pyproject.toml").read_text(encoding="utf-8"))


def find_pythons(minors: Sequence[str], chosen: Sequence[Path] = ()) -> dict[str, Interpreter]:
    """Return an interpreter for each minor version that this machine has, by minor version.

    Args:
        minors: The minor versions.
        chosen: Programs that take precedence over those of PATH, pyenv and uv.
    """
    found: dict[str, Interpreter] = {}
    for interpreter in map(_probe, [*chosen, *_programs(minors, os.environ)]):
        if interpreter and interpreter.minor in minors:
            found.setdefault(interpreter.minor, interpreter)
    return found


def _programs(minors: Sequence[str], environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path.home()
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    uv = Path(environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local" / "share" / "uv" / "python")
    for minor in minors:
        on_path = shutil.which(f"python{minor}")
        if on_path:
            yield Path(on_path)
        for versions in (pyenv, uv):
            yield from sorted(versions.glob(f"*/bin/python{minor}"), reverse=True)


def _probe(program: Path) -> Interpreter | None:
    """Return the interpreter, or None if it does not run or cannot make virtual environments."""
    try:
        done = subprocess.run([str(program), "-I", "-c", _PROBE], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    version, _, path = done.stdout.strip().partition(" ")
    return Interpreter(Path(path), version)
