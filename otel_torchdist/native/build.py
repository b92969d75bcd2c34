"""Builds the library for the torch that is installed, with this machine's compiler. Never inside a rank."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.native.compiling import NoToolError, TorchFiles, compile_library, find_compiler
from otel_torchdist.native.library import Library, NativeError, library_name

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
    """The headers and libraries of the torch that is installed, which takes seconds to import.

    Raises:
        NoToolError: There is none.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        raise NoToolError("torch is not installed")
    home = Path(found.origin).parent
    return TorchFiles(home / "include", home / "lib")


def installed_version() -> str:
    """The version of the torch that is installed, which is imported.

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
