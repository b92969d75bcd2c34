"""The versions of torch to build for: headers and symbols of releases from the package index.

Only the headers of a wheel and the symbols exported by its libraries are kept, in the user's cache. The wheels for
aarch64 serve both architectures: those for x86-64 are larger, and the headers that we include are the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.native.build import TORCH_LIBRARIES, installed_torch, installed_version
from otel_torchdist.native.library import library_cache
from wheels.elf import symbols_of

VERSIONS: Final = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""The newest patch release of each supported minor version."""
_PLATFORM: Final = "manylinux_2_28_aarch64"
_PYTHON: Final = "3.12"
"""A Python for which all these versions have wheels. The headers and symbols that we use do not depend on it."""


class TorchError(Exception):
    """A version of torch is not available."""


@dataclass(frozen=True)
class Torch:
    """The parts of a torch that are needed to build for it.

    Attributes:
        version: Version of torch.
        include: Folder of its headers.
        exported: Symbols exported by its libraries.
    """

    version: str
    include: Path
    exported: frozenset[str]


def of_environment() -> Torch:
    """Return the installed torch."""
    torch = installed_torch()
    return Torch(installed_version(), torch.include, frozenset(_exported_by(torch.libraries)))


def of_index(version: str) -> Torch:
    """Return a released torch; download it if it is not in the cache.

    Raises:
        TorchError: It cannot be downloaded.
    """
    kept = library_cache().with_name("torch") / version
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=kept.parent) as scratch:
            _reduce(_downloaded(version, Path(scratch)), Path(scratch) / "reduced")
            (Path(scratch) / "reduced").replace(kept)
    return Torch(version, kept / "include", frozenset((kept / "exported").read_text().split()))


def _downloaded(version: str, folder: Path) -> Path:
    print(f"torch {version}: downloading the wheel", flush=True)
    command = [
        *(sys.executable, "-m", "pip", "download", f"torch=={version}", "--no-deps", "--no-cache-dir", "--quiet"),
        *("--only-binary=:all:", f"--platform={_PLATFORM}", f"--python-version={_PYTHON}", f"--dest={folder}"),
    ]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    wheels = [*folder.glob("*.whl")]
    if done.returncode or not wheels:
        raise TorchError(f"torch {version} cannot be downloaded: {done.stderr.strip()}")
    return wheels[0]


def _reduce(wheel: Path, folder: Path) -> None:
    """Extract the headers and the exported symbols from a wheel."""
    libraries = [f"torch/lib/lib{name}.so" for name in TORCH_LIBRARIES]
    with zipfile.ZipFile(wheel) as archive:
        headers = [name for name in archive.namelist() if name.startswith("torch/include/")]
        archive.extractall(wheel.parent, [*headers, *libraries])
    folder.mkdir()
    (wheel.parent / "torch" / "include").rename(folder / "include")
    (folder / "exported").write_text("\n".join(sorted(_exported_by(wheel.parent / "torch" / "lib"))))


def _exported_by(libraries: Path) -> set[str]:
    return {
        symbol.name
        for name in TORCH_LIBRARIES
        for symbol in symbols_of(libraries / f"lib{name}.so")
        if symbol.is_defined
    }
