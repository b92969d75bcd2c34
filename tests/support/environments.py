"""Environments of users: virtual environments that have packages at hand, so that nothing is downloaded."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from release.environments import lend_packages, new_environment
from tests.support.tapes.directories import memory_directory
from tests.support.tapes.recorded import RecordedTape, read_tapes

_PROGRAM: Final = Path(__file__).parents[1] / "wheels" / "workers" / "user.py"
_PACKAGES: Final = Path(sysconfig.get_path("purelib"))
_LOG: Final = re.compile(r"^otel_torchdist: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """The traces of a user's program.

    Attributes:
        tape: Its tape.
        log: Lines of our logger.
        files: The folder of the package that it has used.
    """

    tape: RecordedTape
    log: list[str]
    files: Path


def at_hand(folder: Path, *without: str) -> Path:
    """Make a folder of links to the packages of this environment, except otel_torchdist and those named."""
    return lend_packages(_PACKAGES, folder, *without)


def make_environment(folder: Path, packages: Path | None) -> Path:
    """Make a virtual environment that sees the packages of a folder, and has no others; return its Python."""
    return new_environment(Path(sys.executable), folder, "--without-pip", lent=packages)


def run_program(python: Path, times: int, folder: Path) -> Run:
    """Run a program that calls all_reduce in an environment of a user, and read its tape.

    Args:
        python: The environment's Python.
        times: Its number of calls.
        folder: Its home, which has no native library. It finds no compiler.
    """
    with memory_directory() as tapes:
        environ = {"PATH": "", "HOME": str(folder), "GLOO_SOCKET_IFNAME": "lo"}
        environ |= {"OTEL_PYTHON_TORCHDIST_ENABLED": "true", "OTEL_PYTHON_TORCHDIST_READER": "none"}
        environ |= {"OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes), "RANK": "0", "WORLD_SIZE": "1"}
        command = [str(python), str(_PROGRAM), str(times), str(folder / "store")]
        done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        [tape] = read_tapes(tapes)
    return Run(tape, _LOG.findall(done.stderr), Path(done.stdout.splitlines()[-1]))
