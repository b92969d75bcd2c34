"""Compiles the library in C++ from the sources beside this file, against the headers and libraries of one torch."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from otel_torchdist.native.library import NativeError

SOURCES: Final = Path(__file__).parent / "source"
TORCH_LIBRARIES: Final = ("c10", "torch_cpu")
"""What the library is linked against."""
# No warnings: what a compiler that is newer than ours warns of is no reason to record in Python.
_FLAGS: Final = ("-O2", "-fPIC", "-fvisibility=hidden", "-w")
_STANDARDS: Final = ("c++17", "c++20")
"""Ours is C++17; torch's own headers need C++20 from 2.15 on."""
_LIMIT_S: Final = 600.0
_POLL_S: Final = 0.02


class NoToolError(NativeError):
    """There is no compiler, or no torch to build for."""


@dataclass(frozen=True)
class TorchFiles:
    """What the library is compiled and linked against.

    Attributes:
        include: Torch's headers.
        libraries: The folder of its shared libraries.
    """

    include: Path
    libraries: Path


def find_compiler() -> list[str]:
    """The C++ compiler that CXX names, with its options, or else that of this machine.

    Raises:
        NoToolError: There is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen and not shutil.which(chosen[0]):
        raise NoToolError(f"there is no C++ compiler {chosen[0]}, which CXX names")
    found = shutil.which("g++") or shutil.which("clang++")
    if not chosen and not found:
        raise NoToolError("there is no C++ compiler (g++, clang++, or what CXX names)")
    return chosen or [str(found)]


def compile_library(compiler: Sequence[str], torch: TorchFiles, scratch: Path) -> Path:
    """Compile and link the library, without symbols for a debugger.

    Args:
        compiler: With its options.
        torch: What it is for.
        scratch: A folder for all files of the compiler; they may stay there if this process is killed.

    Returns:
        The library, in `scratch`.

    Raises:
        NativeError: It cannot be compiled; the message has the first error.
        OSError: There is no space.
    """
    flags = [*_FLAGS, *include_flags(torch)]
    # Torch's headers put their paths into messages.
    flags += [f"-ffile-prefix-map={torch.include}=torch/include", f"-ffile-prefix-map={SOURCES}=otel_torchdist"]
    # Named in the library in any case: torch has loaded them, and symbols are looked for in what is named.
    linked = ["-Wl,--no-as-needed", f"-L{torch.libraries}", *(f"-l{name}" for name in TORCH_LIBRARIES)]
    library = scratch / "library.so"
    _run([*compiler, *flags, str(all_sources(scratch)), "-shared", "-s", "-o", str(library), *linked], scratch)
    return library


def all_sources(scratch: Path) -> Path:
    """A source that includes all others: torch's headers take seconds to read, and are read once."""
    path = scratch / "library.cc"
    path.write_text("".join(f'#include "{source.name}"\n' for source in sorted(SOURCES.glob("*.cc"))))
    return path


def include_flags(torch: TorchFiles) -> list[str]:
    """The compiler's options for our sources and the headers of a torch."""
    headers = [f"-isystem{torch.include}", f"-isystem{torch.include}/torch/csrc/api/include"]
    return [f"-std={_STANDARDS[_needs_20(torch)]}", *_labels(torch), *headers, f"-I{SOURCES}"]


def _needs_20(torch: TorchFiles) -> bool:
    return "C++20 or later" in (torch.include / "ATen" / "ATen.h").read_text()


def _labels(torch: TorchFiles) -> list[str]:
    works = (torch.include / "torch" / "csrc" / "distributed" / "c10d" / "Work.hpp").read_text()
    return ["-DHAS_LABELS"] if "get_comm_profiling_name" in works else []


def _run(command: Sequence[str], scratch: Path) -> None:
    """Run the compiler, whose messages are kept in memory, for the disk may be full."""
    with open(os.memfd_create("compiler"), "w+b") as output, ExitStack() as ended:
        with _no_interrupt():
            running = _start(command, output, scratch)
            ended.callback(_end, running)
        code = _wait(running)
        if code is None:
            raise NativeError(f"{command[0]} takes longer than {_LIMIT_S:.0f} s")
        if code:
            output.seek(0)
            raise _failure(command[0], output.read().decode(errors="replace"), scratch)


@contextmanager
def _no_interrupt() -> Generator[None, None, None]:
    """Let Ctrl-C wait, so that no compiler is started that is not ended again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # blocks it also where it raises one that came before
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(command: Sequence[str], output: IO[bytes], scratch: Path) -> subprocess.Popen[bytes]:
    """Start a compiler in a session of its own, so that it can be killed with all that it starts."""
    environ = {**os.environ, "LC_ALL": "C", "TMPDIR": str(scratch)}
    try:
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise NativeError(f"{command[0]} cannot be run: {error.strerror}") from error


def _wait(running: subprocess.Popen[bytes]) -> int | None:
    """Wait for a compiler, which Ctrl-C interrupts; returns its exit code, None if it takes too long.

    `Popen.wait` cannot be interrupted for certain: where Ctrl-C comes just after it has locked the process, it leaves
    it locked, and the next one waits for ever.
    """
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        with _no_interrupt():
            code = running.poll()
        if code is not None:
            return code
        time.sleep(_POLL_S)
    return None


def _end(running: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    with _no_interrupt():
        running.wait()


def _failure(compiler: str, text: str, scratch: Path) -> Exception:
    if os.strerror(errno.ENOSPC) in text:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(scratch))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line.lower()), *lines[-1:] or ("it says nothing",))
    return NativeError(f"{compiler} cannot make the library: {first}")
