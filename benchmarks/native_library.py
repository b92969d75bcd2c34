"""The native library for benchmarks and tests: built once for its sources and a torch, and kept in the checkout.

It is built in a process of its own, for the one that asks has no torch.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from otel_torchdist.native.build import SOURCES
from otel_torchdist.native.library import library_name

MISSING: Final = (
    "There is no C++ compiler (g++, clang++, or what CXX names), so there is no native library: what needs it is left "
    "out."
)
BUILT: Final = Path(__file__).parents[1] / ".built"
"""What benchmarks and tests build. The user's own cache has what programs of the user run with."""
_BUILD: Final = "import sys; from pathlib import Path; from otel_torchdist.native.build import build; "
_PROGRAM: Final = _BUILD + "build(Path(sys.argv[1]))"


@functools.cache
def native_cache() -> Path | None:
    """A folder for `XDG_CACHE_HOME` that has the library, which is built if it is not there; None without a compiler.

    Raises:
        RuntimeError: It cannot be built; the message says why.
    """
    if not has_compiler():
        return None
    cache = BUILT / "native" / _digest()
    folder = library_folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / library_name(version("torch"))).is_file():
            _build(folder)
    return cache


def has_compiler() -> bool:
    """Whether there is a C++ compiler."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


def library_folder(cache: Path) -> Path:
    """Where the library is in a cache."""
    return cache / "otel-torchdist" / "native"


def _build(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the native library cannot be built:\n{done.stderr}")


def _digest() -> str:
    """What the library depends on: its sources and torch."""
    known = hashlib.sha256(version("torch").encode())
    for source in sorted(SOURCES.iterdir()):
        known.update(source.read_bytes())
    return known.hexdigest()[:16]
