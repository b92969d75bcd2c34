"""Builds the library in C++ for one torch, with this machine's compiler. Never inside a rank."""

from __future__ import annotations

import errno
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from otel_torchdist.native.library import Library, NativeError, library_name

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
    """The torch files that the library is compiled and linked against.

    Attributes:
        include: Torch's headers.
        libraries: The folder of its shared libraries.
    """

    include: Path
    libraries: Path


def find_compiler() -> list[str]:
    """Return the C++ compiler that CXX names, with its options, or else this machine's.

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
    """Return a source that includes all others: torch's headers take seconds to read, and are read once."""
    path = scratch / "library.cc"
    path.write_text("".join(f'#include "{source.name}"\n' for source in sorted(SOURCES.glob("*.cc"))))
    return path


def include_flags(torch: TorchFiles) -> list[str]:
    """Return the compiler's options for our sources and the headers of a torch."""
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


_SCRATCH: Final = ".build-"
_ABANDONED_S: Final = 3600.0
"""Longer than any build may take."""
_RANK_VARIABLES: Final = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")
"""What launchers such as torchrun set for each rank. RANK is not among them: some clusters set it for a node."""


def build(folder: Path) -> Path:
    """Build the library, check that it can be used here, and put it into a folder; return its path.

    It gets its name only when it is complete, so builds at the same time, or one that was killed, do no harm. What a
    killed one has left is removed an hour later.

    Raises:
        NoToolError: There is no compiler or no torch.
        NativeError: This is a rank, or the library cannot be built or loaded.
        OSError: The folder cannot be written to.
    """
    _refuse_ranks(os.environ)
    compiler = find_compiler()
    torch = installed_torch()
    folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
        made = compile_library(compiler, torch, Path(scratch))
        finished = folder / library_name(installed_version())
        Library(made)
        _settle(made)
        made.replace(finished)
    return finished


def _settle(made: Path) -> None:
    """Write a library out, so that its name never stands for half of it, and keep others from changing it."""
    made.chmod(0o755)
    with made.open("rb") as file:
        os.fsync(file.fileno())


def installed_torch() -> TorchFiles:
    """Return the headers and libraries of the torch that is installed, which takes seconds to import.

    Raises:
        NoToolError: There is none.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        raise NoToolError("torch is not installed")
    home = Path(found.origin).parent
    return TorchFiles(home / "include", home / "lib")


def installed_version() -> str:
    """Return the version of the torch that is installed, which is imported.

    Raises:
        NoToolError: It cannot be imported.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        raise NoToolError(f"torch cannot be imported: {error}") from error
    return torch.__version__


def _refuse_ranks(environ: Mapping[str, str]) -> None:
    """All ranks of a job would compile at the same time, on processors that train."""
    for name in _RANK_VARIABLES:
        if name in environ:
            rank = f"this is a rank of a job ({name}={environ[name]})"
            raise NativeError(f"{rank}, where nothing is compiled: build before the job starts")


def _remove_abandoned(folder: Path) -> None:
    """Remove what builds have left that were killed."""
    for scratch in folder.glob(f"{_SCRATCH}*"):
        try:
            is_abandoned = time.time() - scratch.stat().st_mtime > _ABANDONED_S
        except OSError:  # another build has just removed it
            continue
        if is_abandoned:
            shutil.rmtree(scratch, ignore_errors=True)
