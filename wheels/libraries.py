"""Builds a native library for any version of torch and any architecture, not only this machine's."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from otel_torchdist.native.build import TORCH_LIBRARIES, NoToolError, TorchFiles, compile_library, find_compiler
from otel_torchdist.native.library import library_name
from wheels.requirements import found_everywhere, unmet
from wheels.torches import Torch

MACHINES: Final = ("x86_64", "aarch64")
_STEMS: Final = {"x86_64": "x86-64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


class RequirementsError(Exception):
    """A library needs symbols that are missing on some machines where its wheel can be installed."""


def compiler_for(machine: str) -> list[str]:
    """Return the compiler command for an architecture.

    Raises:
        NoToolError: There is none on this machine.
    """
    if machine == platform.machine():
        return find_compiler()
    name = f"{machine}-linux-gnu-g++"
    if not shutil.which(name):
        raise NoToolError(f"there is no {name} (Debian: g++-{_STEMS[machine]})")
    return [name]


def build_library(torch: Torch, machine: str, folder: Path) -> Path:
    """Build the library for a torch and an architecture into a folder; return its path.

    Raises:
        NoToolError: There is no compiler for the architecture.
        NativeError: The library cannot be compiled.
        RequirementsError: The library cannot be loaded on all machines.
    """
    compiler = compiler_for(machine)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
        stand_ins = _stand_ins(compiler, torch.exported, Path(scratch))
        library = compile_library(compiler, TorchFiles(torch.include, stand_ins), Path(scratch))
        problems = unmet(library, torch.exported)
        if problems:
            raise RequirementsError(f"the library for torch {torch.version} on {machine}: {'; '.join(problems)}")
        return library.replace(folder / library_name(torch.version, machine))


def _stand_ins(compiler: Sequence[str], exported: Collection[str], scratch: Path) -> Path:
    """Build empty libraries with the names and exported symbols of torch's libraries, to link against.

    They precede libstdc++ when linking, so they must not export its functions. Exceptions are functions too new for old
    machines: torch exports these itself.
    """
    folder = scratch / "stand-ins"
    folder.mkdir()
    symbols = folder / "exported.s"
    libstdcxx = subprocess.run(
        [*compiler, "-print-file-name=libstdc++.so.6"], stdout=subprocess.PIPE, text=True, check=True
    )
    names = sorted({*exported} - {*found_everywhere(Path(libstdcxx.stdout.strip()))})
    symbols.write_text("".join(f'.globl "{name}"\n"{name}":\n' for name in names))
    for name in TORCH_LIBRARIES:
        file = f"lib{name}.so"
        command = [*compiler, "-shared", "-nostdlib", f"-Wl,-soname,{file}", str(symbols), "-o", str(folder / file)]
        subprocess.run(command, check=True)
    return folder
