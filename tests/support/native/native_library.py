"""The native library for tests, which benchmarks use too, and a library with simulated devices."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest
import torch

from benchmarks import native_library
from benchmarks.native_library import BUILT, has_compiler
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from otel_torchdist.native.build import find_compiler

_SIMULATED: Final = Path(__file__).parents[2] / "native" / "simulated" / "device.cc"

KERNELS: Final = ("python", "native")


def native_cache() -> Path:
    """A cache, as `XDG_CACHE_HOME` names it, with the library; skips where there is no compiler."""
    cache = native_library.native_cache()
    if cache is None:
        pytest.skip(native_library.MISSING)
    return cache


def environ_of(kernel: str) -> dict[str, str]:
    """What a process needs to record with a kernel, `python` or `native`."""
    chosen = {OTEL_PYTHON_TORCHDIST_CAPTURE: kernel}
    return {**chosen, "XDG_CACHE_HOME": str(native_cache())} if kernel == "native" else chosen


@functools.cache
def simulated_library() -> Path:
    """The library in C++ of tensors and operations, built once for this torch; skips where there is no compiler."""
    compiler = _compiler()
    key = hashlib.sha256(torch.__version__.encode() + _SIMULATED.read_bytes()).hexdigest()[:16]
    built = BUILT / "simulated" / f"simulated-{key}.so"
    if not built.is_file():
        home = Path(torch.__file__).parent
        headers = [f"-isystem{home}/include", f"-isystem{home}/include/torch/csrc/api/include"]
        libraries = [f"-L{home}/lib", "-lc10", "-ltorch_cpu", "-ltorch_python"]
        built.parent.mkdir(parents=True, exist_ok=True)
        made = built.with_name(f"{built.name}.{os.getpid()}")
        flags = ["-std=c++20", "-O1", "-fPIC", "-shared"]
        subprocess.run([*compiler, *flags, *headers, str(_SIMULATED), *libraries, "-o", str(made)], check=True)
        made.replace(built)
    return built


def _compiler() -> list[str]:
    if not has_compiler():
        pytest.skip("no C++ compiler: nothing native can be built")
    return find_compiler()
