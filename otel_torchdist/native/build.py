"""Builds the library from the sources beside this file, for the torch that is installed. Never inside a rank."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_torchdist.native.library import Library, NativeError, library_name

SOURCES: Final = Path(__file__).parent / "source"
_FLAGS: Final = ("-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_STANDARDS: Final = ("c++17", "c++20")
"""Ours is C++17; torch's own headers need C++20 from 2.15 on."""
_LIMIT_S: Final = 600.0


def build(folder: Path) -> Path:
    """Build the library, check that it can be used here, and put it into a folder; return its path.

    It gets its name only when it is complete, so builds at the same time, or one that was killed, do no harm.

    Raises:
        NativeError: There is no compiler, or the library cannot be built or loaded.
        OSError: The folder cannot be written to.
    """
    import torch

    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise NativeError("there is no C++ compiler (g++, clang++, or what CXX names)")
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
        objects = _compiled(compiler, home, Path(scratch))
        made = Path(scratch) / "library.so"
        _run([compiler, "-shared", "-o", str(made), *objects, f"-L{home}/lib", "-lc10", "-ltorch_cpu"])
        Library(made)
        finished = folder / library_name(torch.__version__)
        _settle(made)
        made.replace(finished)
    return finished


def _settle(made: Path) -> None:
    """Write a library out, so that its name never stands for half of it, and keep others from changing it."""
    made.chmod(0o755)
    with made.open("rb") as file:
        os.fsync(file.fileno())


def _compiled(compiler: str, home: Path, scratch: Path) -> list[str]:
    """Compile all sources at the same time; return the objects."""
    headers = [f"-isystem{home}/include", f"-isystem{home}/include/torch/csrc/api/include"]
    works = (home / "include" / "torch" / "csrc" / "distributed" / "c10d" / "Work.hpp").read_text()
    labels = ["-DHAS_LABELS"] if "get_comm_profiling_name" in works else []
    standard = _STANDARDS[_needs_20(home)]
    running: list[tuple[Path, subprocess.Popen[str]]] = []
    for source in sorted(SOURCES.glob("*.cc")):
        command = [
            compiler,
            f"-std={standard}",
            *_FLAGS,
            *labels,
            *headers,
            "-c",
            str(source),
            "-o",
            f"{scratch}/{source.stem}.o",
        ]
        pipe = subprocess.PIPE
        running.append((source, subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True)))
    texts = [(source, process.communicate(timeout=_LIMIT_S)[0], process.returncode) for source, process in running]
    for source, text, code in texts:
        if code:
            raise NativeError(f"{source} cannot be compiled with {compiler}:\n{text}")
    return [f"{scratch}/{source.stem}.o" for source, _, _ in texts]


def _needs_20(home: Path) -> bool:
    text = (home / "include" / "ATen" / "ATen.h").read_text()
    return "C++20 or later" in text


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise NativeError(f"{command[0]} failed:\n{done.stderr}")
