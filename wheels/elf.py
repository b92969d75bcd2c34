"""What a shared library offers to others and needs of them, as `readelf` reports it for every machine."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Num, value, size, type, binding, visibility, section, and the name, with its version behind one @ or two.
_SYMBOL: Final = re.compile(
    r"^ *\d+: [0-9a-f]+ +\S+ \w+ +(?P<binding>\w+) +\w+ +(?:\[.*?\] +)?(?P<section>\w+) (?P<name>[^@\s]+)"
    r"(?:@@?(?P<version>[\w.]+))?"
)


@dataclass(frozen=True)
class Symbol:
    """A symbol of a shared library.

    Attributes:
        name: As the compiler has made it of the name in C++.
        version: Such as `GLIBC_2.28`; empty if it has none.
        is_defined: Whether the library has it; else it needs it.
        is_weak: Whether the library works without it.
    """

    name: str
    version: str
    is_defined: bool
    is_weak: bool


def symbols_of(library: Path) -> list[Symbol]:
    """All symbols by which a library is linked to others.

    Raises:
        subprocess.CalledProcessError: It cannot be read.
    """
    command = ["readelf", "--dyn-syms", "--wide", str(library)]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={"LC_ALL": "C"}).stdout
    found = (_SYMBOL.match(line) for line in listed.splitlines())
    return [
        Symbol(match["name"], match["version"] or "", match["section"] != "UND", match["binding"] == "WEAK")
        for match in found
        if match and match["binding"] != "LOCAL"
    ]
