"""Whose code a frame runs: decided by where its file lies, for the ranks that record and for those who read.

A process that reads need not have the interpreter, or the packages, of the one that wrote. So paths decide, and what
only this process knows (where its own torch and standard library lie) comes on top. An editable install lies outside
of the folders of packages: it is the user's.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import Final

_MAX_KNOWN: Final = 4_096


class FrameOwner(enum.Enum):
    """Whose code a frame runs."""

    USER = "user"
    PACKAGE = "package"
    TORCH = "torch"
    OTEL_TORCHDIST = "otel_torchdist"
    STANDARD_LIBRARY = "standard library"

    @property
    def is_of_program(self) -> bool:
        """Whether the program runs it as its own: the user's code, and packages that it uses."""
        match self:
            case FrameOwner.USER | FrameOwner.PACKAGE:
                return True
            case FrameOwner.TORCH | FrameOwner.OTEL_TORCHDIST | FrameOwner.STANDARD_LIBRARY:
                return False


def _folders(module: str) -> Iterator[str]:
    """Where a module lies, without importing it, as a process needs that reads and has no use for it."""
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        return
    for folder in (found and found.submodule_search_locations) or ():
        yield f"{folder}/"


def _standard_library() -> Iterator[str]:
    file = getattr(os, "__file__", None)  # a frozen application need not have one
    if file and os.path.isabs(file):
        yield f"{os.path.dirname(file)}/"


_TORCH_HERE: Final = tuple(_folders("torch"))
_STANDARD_HERE: Final = tuple(_standard_library())
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_RULES: Final = (
    (
        # Not our whole package: it also contains the demo's training script.
        FrameOwner.OTEL_TORCHDIST,
        re.compile(
            r"(^|/)otel_torchdist/((actions|agent|capture|exchange|files|job|model|native|processes|serving|stall|tape"
            r"|telemetry|this_process|verdict|world)/|(autoload|first_group|guard|instrumentor|rescue|switch"
            r"|when_imported)\.py$)"
        ),
    ),
    (
        FrameOwner.TORCH,
        re.compile(
            r"/(site|dist)-packages/(torch|torchgen|functorch)/|/pytorch/torch/|^(torch|torchgen|functorch)/"
            r"|/torchinductor_[^/]+/|/torch_compile_|^<eval_with_key>"
        ),
    ),
    # A module from a later Python, whose decorators torch uses.
    (FrameOwner.STANDARD_LIBRARY, re.compile(r"/typing_extensions\.py$")),
    (FrameOwner.PACKAGE, re.compile(r"/(site|dist)-packages/|^<(attrs generated|decorator-gen|makefun-gen|__array_)")),
    (
        FrameOwner.STANDARD_LIBRARY,
        re.compile(r"/lib(64)?/python3(\.\d+t?)?/|/python3\d+\.zip/|/lib/pypy3[^/]*/|^<frozen "),
    ),
)
_STRING: Final = "<string>"
_MAGIC: Final = re.compile(r"(^|\.)__\w+__$")


@lru_cache(_MAX_KNOWN)
def owner_of(file: str, function: str = "") -> FrameOwner:
    """The owner of the code in a file.

    Args:
        file: The file of a code object: a path, or what stands for one (`<string>`, `<ipython-input-1-…>`).
        function: The function. Of `python -c` and of a dataclass's `__init__` the file is the same.
    """
    # torch's generated code is where this variable says, which torch sets itself before it generates any.
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if file.startswith(_TORCH_HERE) or (generated and file.startswith(os.path.abspath(generated))):
        return FrameOwner.TORCH
    found = next((owner for owner, pattern in _RULES if pattern.search(file)), None)
    if found is not None:
        return found
    is_standard = file.startswith(_STANDARD_HERE) or _is_frozen_module(file)
    if is_standard or (file == _STRING and _MAGIC.search(function)):
        return FrameOwner.STANDARD_LIBRARY
    return FrameOwner.USER


def _is_frozen_module(file: str) -> bool:
    """Whether a file without a folder is a module of Python, as in a frozen application (`threading.py`)."""
    if file.startswith(("/", "<")):
        return False
    return file.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names


def package_of(file: str) -> str:
    """The package that a file of a library belongs to, by its folder; '' if that does not name one."""
    match owner_of(file):
        case FrameOwner.PACKAGE:
            found = _INSTALLED.findall(file)
            return found[-1].removesuffix(".py") if found else ""
        case FrameOwner.TORCH:
            return "torch"
        case FrameOwner.OTEL_TORCHDIST:
            return "otel_torchdist"
        case FrameOwner.STANDARD_LIBRARY:
            return "python"
        case FrameOwner.USER:
            return ""


def innermost(frames: Iterable[tuple[str, str]]) -> int | None:
    """The place of the frame to show among those of a thread; None if there is none.

    That is the innermost one of the user's code, else of a package, else of torch or Python. Ours is never shown.

    Args:
        frames: File and function of each, innermost first.
    """
    owners = [owner_of(file, function) for file, function in frames]
    shown = [(place, index) for index, owner in enumerate(owners) if (place := _PLACES[owner]) is not None]
    return min(shown)[1] if shown else None


def _place(owner: FrameOwner) -> int | None:
    """Return the place of an owner among those whose frame is shown; None if it is never shown."""
    match owner:
        case FrameOwner.USER:
            return 0
        case FrameOwner.PACKAGE:
            return 1
        case FrameOwner.TORCH:
            return 2
        case FrameOwner.STANDARD_LIBRARY:
            return 3
        case FrameOwner.OTEL_TORCHDIST:
            return None


_PLACES: Final = {owner: _place(owner) for owner in FrameOwner}
