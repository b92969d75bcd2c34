"""Checks that a library can be loaded wherever its wheel can be installed."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from otel_torchdist.native.build import SOURCES
from wheels.elf import Symbol, symbols_of

_NEWEST: Final = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 11), "GCC": (4, 5, 0)}
"""Newest symbol versions on all machines that run torch: of glibc by the wheels' tag, else by the needs of torch."""
# The dynamic loader provides it, for thread-local variables.
_LOADERS: Final = ("__tls_get_addr",)


def unmet(library: Path, exported: Collection[str]) -> list[str]:
    """Return the requirements of a library that some machines do not meet, each as a sentence.

    Args:
        library: The library.
        exported: The symbols exported by its version of torch.
    """
    offered = {*exported, *functions_of_python(), *_LOADERS}
    missing = [
        f"it needs {symbol.name}, which neither torch nor Python has"
        for symbol in symbols_of(library)
        if not symbol.is_defined and not symbol.is_weak and not symbol.version and symbol.name not in offered
    ]
    too_new = [
        f"it needs {symbol.name} of {symbol.version}, and {_newest_of(symbol)} is the newest on all machines"
        for symbol in symbols_of(library)
        if not symbol.is_defined and symbol.version and _is_too_new(symbol.version)
    ]
    return missing + too_new


def found_everywhere(library: Path) -> set[str]:
    """Return the exported symbols of a system library that are old enough to exist on all machines."""
    return {
        symbol.name
        for symbol in symbols_of(library)
        if symbol.is_defined and symbol.version and not _is_too_new(symbol.version)
    }


def functions_of_python() -> set[str]:
    """Return the functions of Python that the native library declares; all exist since Python 3.10."""
    declared = (SOURCES / "python.h").read_text().partition('extern "C"')[2].partition("\n}\n")[0]
    return {*re.findall(r"\b(Py\w+)\(", declared)}


def _is_too_new(version: str) -> bool:
    family, _, number = version.rpartition("_")
    newest = _NEWEST.get(family)
    return newest is None or not re.fullmatch(r"[\d.]+", number) or tuple(map(int, number.split("."))) > newest


def _newest_of(symbol: Symbol) -> str:
    family = symbol.version.rpartition("_")[0]
    return f"{family}_{'.'.join(map(str, _NEWEST[family]))}" if family in _NEWEST else "none"
