"""Builds the native library for the installed torch, with this machine's compiler. Never inside a rank."""

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from otel_torchdist.native.library import Library, NativeError, library_name
from otel_torchdist.system.this_process.commands import delaying_signals

SOURCES: Final = Path(__file__).parent / "source"
TORCH_LIBRARIES: Final = ("c10", "torch_cpu")
"""Libraries of torch that the native library links."""
# -w: a warning of a newer compiler must not fail the build.
_FLAGS: Final = ("-O2", "-fPIC", "-fvisibility=hidden", "-w")
_STANDARDS: Final = ("c++17", "c++20")
"""Our code is C++17. torch's headers need C++20 from 2.15 on."""
_TIMEOUT_S: Final = 600.0
_POLL_S: Final = 0.02


class NoToolError(NativeError):
    """There is no compiler, or no torch."""


@dataclass(frozen=True)
class TorchFiles:
    """The torch files that the library is compiled and linked against.

    Attributes:
        include: Folder of torch's headers.
        libraries: Folder of torch's shared libraries.
    """

    include: Path
    libraries: Path


def find_compiler() -> list[str]:
    """Return the C++ compiler in CXX, with its options, else this machine's compiler.

    Raises:
        NoToolError: There is no compiler.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen and not shutil.which(chosen[0]):
        raise NoToolError(f"there is no C++ compiler {chosen[0]}, which CXX names")
    default = shutil.which("g++") or shutil.which("clang++")
    if not chosen and not default:
        raise NoToolError("there is no C++ compiler (g++, clang++, or what CXX names)")
    return chosen or [str(default)]


def compile_library(compiler: Sequence[str], torch: TorchFiles, scratch: Path) -> Path:
    """Compile and link the library, without debug symbols.

    Args:
        compiler: The compiler, with its options.
        torch: The torch to build for.
        scratch: Folder for temporary files. They stay if this process is killed.

    Returns:
        Path of the library, in `scratch`.

    Raises:
        NativeError: Compilation failed. The message has the first error.
        OSError: There is no space.
    """
    flags = [*_FLAGS, *include_flags(torch)]
    # torch's headers embed their paths in messages.
    flags += [f"-ffile-prefix-map={torch.include}=torch/include", f"-ffile-prefix-map={SOURCES}=otel_torchdist"]
    # Link torch's libraries even if unused: symbols are only looked up in linked libraries.
    linked = ["-Wl,--no-as-needed", f"-L{torch.libraries}", *(f"-l{name}" for name in TORCH_LIBRARIES)]
    library = scratch / "library.so"
    _run([*compiler, *flags, str(all_sources(scratch)), "-shared", "-s", "-o", str(library), *linked], scratch)
    return library


def all_sources(scratch: Path) -> Path:
    """Return a source file that includes all others, so that torch's headers (seconds) are parsed once."""
    path = scratch / "library.cc"
    path.write_text("".join(f'#include "{source.name}"\n' for source in sorted(SOURCES.glob("*.cc"))))
    return path


def include_flags(torch: TorchFiles) -> list[str]:
    """Return the compiler options for our sources and torch's headers."""
    headers = [f"-isystem{torch.include}", f"-isystem{torch.include}/torch/csrc/api/include"]
    return [f"-std={_STANDARDS[_needs_cpp20(torch)]}", *_label_flags(torch), *headers, f"-I{SOURCES}"]


def _needs_cpp20(torch: TorchFiles) -> bool:
    return "C++20 or later" in (torch.include / "ATen" / "ATen.h").read_text()


def _label_flags(torch: TorchFiles) -> list[str]:
    works = (torch.include / "torch" / "csrc" / "distributed" / "c10d" / "Work.hpp").read_text()
    return ["-DHAS_LABELS"] if "get_comm_profiling_name" in works else []


def _run(command: Sequence[str], scratch: Path) -> None:
    """Run the compiler. Its messages are kept in memory, because the disk may be full."""
    with open(os.memfd_create("compiler"), "w+b") as output, ExitStack() as cleanup:
        with delaying_signals(signal.SIGINT):  # every started compiler must be ended
            compiler_process = _start(command, output, scratch)
            cleanup.callback(_end, compiler_process)
        code = _wait(compiler_process)
        if code is None:
            raise NativeError(f"{command[0]} takes longer than {_TIMEOUT_S:.0f} s")
        if code:
            output.seek(0)
            raise _failure(command[0], output.read().decode(errors="replace"), scratch)


def _start(command: Sequence[str], output: IO[bytes], scratch: Path) -> subprocess.Popen[bytes]:
    """Start a compiler in a new session, so that it can be killed with its children."""
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


def _wait(compiler_process: subprocess.Popen[bytes]) -> int | None:
    """Wait for a compiler, unless Ctrl-C interrupts. Return its exit code, or None after the timeout.

    `Popen.wait` is not safe to interrupt: a Ctrl-C just after it has taken its lock leaves the lock taken, and the next
    call waits forever.
    """
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        with delaying_signals(signal.SIGINT):
            code = compiler_process.poll()
        if code is not None:
            return code
        time.sleep(_POLL_S)
    return None


def _end(compiler_process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(compiler_process.pid, signal.SIGKILL)
    with delaying_signals(signal.SIGINT):
        compiler_process.wait()


def _failure(compiler: str, text: str, scratch: Path) -> Exception:
    if os.strerror(errno.ENOSPC) in text:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(scratch))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line.lower()), *lines[-1:] or ("it says nothing",))
    return NativeError(f"{compiler} cannot compile the library: {first}")


_SCRATCH_PREFIX: Final = ".build-"
_ABANDONED_S: Final = 3600.0
"""Age in seconds of abandoned files. No build may take that long."""
_RANK_VARIABLES: Final = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")
"""Variables that launchers such as torchrun set in each rank. Not RANK, which some clusters set for a node."""


def build(folder: Path) -> Path:
    """Build the library, check that it is usable, and move it to a folder. Return its path.

    The file gets its name when it is complete, so concurrent or killed builds do no harm. Files of a killed build are
    removed an hour later.

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
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder) as scratch:
        library = compile_library(compiler, torch, Path(scratch))
        final_path = folder / library_name(installed_version())
        Library(library)
        _write_out(library)
        library.replace(final_path)
    return final_path


def _write_out(library: Path) -> None:
    """Flush a library to disk before it gets its name, and make it writable for its owner only."""
    library.chmod(0o755)
    with library.open("rb") as file:
        os.fsync(file.fileno())


def installed_torch() -> TorchFiles:
    """Return the headers and libraries of the installed torch, without importing it, which takes seconds.

    Raises:
        NoToolError: torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise NoToolError("torch is not installed")
    home = Path(spec.origin).parent
    return TorchFiles(home / "include", home / "lib")


def installed_version() -> str:
    """Import torch, and return its version.

    Raises:
        NoToolError: torch cannot be imported.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        raise NoToolError(f"torch cannot be imported: {error}") from error
    return torch.__version__


def _refuse_ranks(environ: Mapping[str, str]) -> None:
    """Raise in a rank: all ranks would compile at the same time, on CPUs that train."""
    for name in _RANK_VARIABLES:
        if name in environ:
            rank = f"this is a rank of a job ({name}={environ[name]})"
            raise NativeError(f"{rank}, and ranks compile nothing: build before the job starts")


def _remove_abandoned(folder: Path) -> None:
    """Remove the files of killed builds."""
    for scratch in folder.glob(f"{_SCRATCH_PREFIX}*"):
        try:
            is_abandoned = time.time() - scratch.stat().st_mtime > _ABANDONED_S
        except OSError:  # another build has just removed it
            continue
        if is_abandoned:
            shutil.rmtree(scratch, ignore_errors=True)
