"""The native library for tests: built once for these sources and this torch, and kept in the user's cache."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

import pytest
import torch

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from otel_torchdist.native.build import build
from otel_torchdist.native.compiling import SOURCES
from otel_torchdist.native.library import library_cache, library_name

KERNELS: Final = ("python", "native")


def has_compiler() -> bool:
    """Whether libraries can be built here."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


@functools.cache
def native_cache() -> Path:
    """A cache, as `XDG_CACHE_HOME` names it, with the library; skips where there is no compiler."""
    if not has_compiler():
        pytest.skip("no C++ compiler: the native library cannot be built")
    known = hashlib.sha256(torch.__version__.encode())
    for source in sorted(SOURCES.iterdir()):
        known.update(source.read_bytes())
    cache = library_cache().with_name("native-tests") / known.hexdigest()[:16]
    folder = cache / "otel-torchdist" / "native"
    folder.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:  # several processes run tests
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / library_name(torch.__version__)).is_file():
            build(folder)
    return cache


def environ_of(kernel: str) -> dict[str, str]:
    """What a process needs to record with a kernel, `python` or `native`."""
    chosen = {OTEL_PYTHON_TORCHDIST_CAPTURE: kernel}
    return {**chosen, "XDG_CACHE_HOME": str(native_cache())} if kernel == "native" else chosen
