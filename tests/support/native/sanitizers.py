"""Programs and libraries in C++ that sanitizers watch: built once for these sources, and kept in the user's cache."""

from __future__ import annotations

import enum
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
import torch

from benchmarks.native_library import BUILT
from otel_torchdist.native.build import SOURCES, TORCH_LIBRARIES, all_sources, include_flags, installed_torch
from otel_torchdist.native.library import library_name
from tests.support.repository import REPOSITORY

STRESS: Final = REPOSITORY / "tests" / "native" / "stress"
WITHOUT_TORCH: Final = ("tape.cc", "plans.cc", "followed.cc", "session.cc", "call_site.cc")
"""What the scenarios of `tests/native/stress` run."""
_FLAGS: Final = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined", "-Wno-tsan")
_WARNINGS: Final = ("-Wall", "-Wextra", "-Werror")
"""Errors here only: on a user's machine, a warning of another compiler is none."""


class Sanitizer(enum.Enum):
    """What is watched, as the compiler calls it."""

    ADDRESS = "address,undefined"
    THREAD = "thread"
    UNDEFINED = "undefined"

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's options."""
        return (f"-fsanitize={self.value}", *_FLAGS)


@functools.cache
def compiler(sanitizer: Sanitizer) -> str:
    """The C++ compiler; skips where there is none, or it lacks the sanitizer."""
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        pytest.skip("no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "empty.cc", Path(folder) / "empty"
        source.write_text("int main() {}\n")
        made = subprocess.run([found, *sanitizer.flags, source, "-o", program], capture_output=True, text=True)
        if made.returncode or subprocess.run([program], capture_output=True).returncode:
            pytest.skip(f"{found} has no sanitizer for {sanitizer.value} here")
    return found


@functools.cache
def stress_program(sanitizer: Sanitizer) -> Path:
    """The program with the scenarios."""
    sources = [*(SOURCES / name for name in WITHOUT_TORCH), *sorted(STRESS.glob("*.cc"))]
    options = ("-std=c++17", *sanitizer.flags, *_WARNINGS, f"-I{SOURCES}", f"-I{STRESS}")
    return _built(compiler(sanitizer), options, sources, ("-pthread",), "stress")


@functools.cache
def watched_cache() -> Path:
    """A cache, as `XDG_CACHE_HOME` names it, with the library under AddressSanitizer and UndefinedBehaviorSanitizer."""
    files = installed_torch()
    # The types of torch's objects are not exported, so their tables of functions cannot be checked.
    flags = (*Sanitizer.ADDRESS.flags, "-fno-sanitize=vptr", "-fPIC", "-fvisibility=hidden")
    linked = ("-shared", f"-L{files.libraries}", *(f"-l{name}" for name in TORCH_LIBRARIES))
    name = f"otel-torchdist/native/{library_name(torch.__version__)}"
    with tempfile.TemporaryDirectory() as scratch:
        sources = [all_sources(Path(scratch))]
        options = (*include_flags(files), *flags, *_WARNINGS)
        return _built(compiler(Sanitizer.ADDRESS), options, sources, linked, name).parents[2]


def address_runtime() -> str:
    """The libraries that have to be loaded first where Python loads the library of `watched_cache`."""
    paths: list[str] = []
    # An exception passes through the sanitizer, which looks for the function that throws it when it starts.
    for library in ("libasan.so", "libstdc++.so.6"):
        command = [compiler(Sanitizer.ADDRESS), f"-print-file-name={library}"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not os.path.isabs(path):
            pytest.skip(f"{library} is not installed")
        paths.append(path)
    return ":".join(paths)


def _built(compiler: str, options: Sequence[str], sources: Sequence[Path], linked: Sequence[str], name: str) -> Path:
    """Compile sources, several at a time, and link them; what was built from the same sources is used again."""
    known = hashlib.sha256("\0".join([torch.__version__, compiler, *options, *linked]).encode())
    for source in sorted({*SOURCES.iterdir(), *STRESS.iterdir()}):
        known.update(source.read_bytes())
    cache = BUILT / "sanitizers" / known.hexdigest()[:16]
    made = cache / name
    made.parent.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if made.is_file():
            return made
        objects = [f"{scratch}/{source.stem}.o" for source in sources]
        running = [
            subprocess.Popen([compiler, *options, "-c", str(source), "-o", target])
            for source, target in zip(sources, objects, strict=True)
        ]
        assert [process.wait() for process in running] == [0] * len(running)
        unfinished = Path(scratch) / "unfinished"
        sanitizing = next(option for option in options if option.startswith("-fsanitize="))
        subprocess.run([compiler, sanitizing, "-o", str(unfinished), *objects, *linked], check=True)
        unfinished.replace(made)
    return made
