"""Reads the dynamic symbols of a shared library of any architecture, with `readelf`."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Num, value, size, type, binding, visibility, section, and the name, followed by @ or @@ and its version.
_SYMBOL: Final = re.compile(
    r"^ *\d+: [0-9a-f]+ +\S+ \w+ +(?P<binding>\w+) +\w+ +(?:\[.*?\] +)?(?P<section>\w+) (?P<name>[^@\s]+)"
    r"(?:@@?(?P<version>[\w.]+))?"
)


@dataclass(frozen=True)
class Symbol:
    """A dynamic symbol of a shared library.

    Attributes:
        name: Mangled name.
        version: Symbol version such as `GLIBC_2.28`; '' if it has none.
        is_defined: Whether the library defines the symbol; if not, it needs it.
        is_weak: Whether the library works without the symbol.
    """

    name: str
    version: str
    is_defined: bool
    is_weak: bool


def symbols_of(library: Path) -> list[Symbol]:
    """Return the dynamic symbols of a library, except local ones.

    Raises:
        subprocess.CalledProcessError: The library cannot be read.
    """
    command = ["readelf", "--dyn-syms", "--wide", str(library)]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={"LC_ALL": "C"}).stdout
    matches = (_SYMBOL.match(line) for line in listed.splitlines())
    return [
        Symbol(match["name"], match["version"] or "", match["section"] != "UND", match["binding"] == "WEAK")
        for match in matches
        if match and match["binding"] != "LOCAL"
    ]
