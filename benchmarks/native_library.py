"""Builds the native library for benchmarks and tests, once for its sources and a version of torch, in the checkout.

It is built in a child process, because the calling process has not imported torch.
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
    "There is no C++ compiler (g++, clang++, or the one in CXX), so there is no native library: measurements with it "
    "are left out."
)
BUILT: Final = Path(__file__).parents[1] / ".built"
"""Folder for builds of benchmarks and tests; the user's cache is for the user's programs."""
_BUILD: Final = "import sys; from pathlib import Path; from otel_torchdist.native.build import build; "
_PROGRAM: Final = _BUILD + "build(Path(sys.argv[1]))"


@functools.cache
def native_cache() -> Path | None:
    """Return a folder for `XDG_CACHE_HOME` with the library, and build the library if needed; None without a compiler.

    Raises:
        RuntimeError: The library cannot be built; the message gives the reason.
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
    """Return whether there is a C++ compiler."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


def library_folder(cache: Path) -> Path:
    """Return the folder of the library in a cache."""
    return cache / "otel-torchdist" / "native"


def _build(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the native library cannot be built:\n{done.stderr}")


def _digest() -> str:
    """Return a digest of the library's inputs: its sources and the version of torch."""
    digest = hashlib.sha256(version("torch").encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
