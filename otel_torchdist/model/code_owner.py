"""Classifies frames by the owner of their code: the user, a package, torch, this package or Python.

The path of the file decides, because a reader need not have the interpreter or the packages of the rank. The locations
of this process's own torch and standard library are used in addition. An editable install lies outside of
`site-packages` and counts as user code.
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

_MAX_CACHED: Final = 4_096


class FrameOwner(enum.Enum):
    """The owner of a frame's code."""

    USER = "user"
    PACKAGE = "package"
    TORCH = "torch"
    OTEL_TORCHDIST = "otel_torchdist"
    STANDARD_LIBRARY = "standard library"

    @property
    def is_of_program(self) -> bool:
        """Whether the code belongs to the program: user code, and the packages it uses."""
        match self:
            case FrameOwner.USER | FrameOwner.PACKAGE:
                return True
            case FrameOwner.TORCH | FrameOwner.OTEL_TORCHDIST | FrameOwner.STANDARD_LIBRARY:
                return False


def _folders(module: str) -> Iterator[str]:
    """Yield the folders of a module without importing it: a process that only reads tapes need not load torch."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return
    for folder in (spec and spec.submodule_search_locations) or ():
        yield f"{folder}/"


def _standard_library() -> Iterator[str]:
    file = getattr(os, "__file__", None)  # a frozen application need not have one
    if file and os.path.isabs(file):
        yield f"{os.path.dirname(file)}/"


_TORCH_FOLDERS: Final = tuple(_folders("torch"))
_STANDARD_FOLDERS: Final = tuple(_standard_library())
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_RULES: Final = (
    (
        # Not the whole package: it also contains the demo's training script.
        FrameOwner.OTEL_TORCHDIST,
        re.compile(
            r"(^|/)otel_torchdist/((agent|analysis|capture|config|judge|launch|model|native|node|show|sources|system|tape"
            r"|telemetry)/|(autoload|environment_variables|errors|guard|instrumentor|package|rescue)\.py$)"
        ),
    ),
    (
        FrameOwner.TORCH,
        re.compile(
            r"/(site|dist)-packages/(torch|torchgen|functorch)/|/pytorch/torch/|^(torch|torchgen|functorch)/"
            r"|/torchinductor_[^/]+/|/torch_compile_|^<eval_with_key>"
        ),
    ),
    # Backports of later Pythons, whose decorators wrap functions of torch.
    (FrameOwner.STANDARD_LIBRARY, re.compile(r"/typing_extensions\.py$")),
    (FrameOwner.PACKAGE, re.compile(r"/(site|dist)-packages/|^<(attrs generated|decorator-gen|makefun-gen|__array_)")),
    (
        FrameOwner.STANDARD_LIBRARY,
        re.compile(r"/lib(64)?/python3(\.\d+t?)?/|/python3\d+\.zip/|/lib/pypy3[^/]*/|^<frozen "),
    ),
)
_STRING: Final = "<string>"
_STARTS_PROCESS: Final = re.compile(r"(^|/)multiprocessing/(spawn|forkserver)\.py$")
"""Files of the functions that `multiprocessing` calls by `python -c` in a new process."""
_MAGIC: Final = re.compile(r"(^|\.)__\w+__$")


def is_process_start(file: str, names: Iterable[str]) -> bool:
    """Return whether code is the command by which `multiprocessing` starts a new Python: `python -c` of its own.

    Args:
        file: The file of the code object.
        names: The names that it uses (`co_names`).
    """
    return file == _STRING and not {"multiprocessing.spawn", "multiprocessing.forkserver"}.isdisjoint(names)


@lru_cache(_MAX_CACHED)
def owner_of(file: str, function: str = "") -> FrameOwner:
    """Return the owner of the code in a file.

    Args:
        file: The file of a code object: a path, or a placeholder (`<string>`, `<ipython-input-1-…>`).
        function: The function. It tells `python -c` from a dataclass's `__init__`: both have the file `<string>`.
    """
    # torch writes generated code to this folder, and sets the variable itself before it generates any.
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if file.startswith(_TORCH_FOLDERS) or (generated and file.startswith(os.path.abspath(generated))):
        return FrameOwner.TORCH
    owner = next((owner for owner, pattern in _RULES if pattern.search(file)), None)
    if owner is not None:
        return owner
    is_standard = file.startswith(_STANDARD_FOLDERS) or _is_frozen_module(file)
    if is_standard or (file == _STRING and _MAGIC.search(function)):
        return FrameOwner.STANDARD_LIBRARY
    return FrameOwner.USER


def _is_frozen_module(file: str) -> bool:
    """Return whether a relative path is a standard library module of a frozen application (`threading.py`)."""
    if file.startswith(("/", "<")):
        return False
    return file.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names


def package_of(file: str) -> str:
    """Return the package that a file belongs to, by its folder; '' if the folder does not name one."""
    match owner_of(file):
        case FrameOwner.PACKAGE:
            packages = _INSTALLED.findall(file)
            return packages[-1].removesuffix(".py") if packages else ""
        case FrameOwner.TORCH:
            return "torch"
        case FrameOwner.OTEL_TORCHDIST:
            return "otel_torchdist"
        case FrameOwner.STANDARD_LIBRARY:
            return "python"
        case FrameOwner.USER:
            return ""


def innermost(frames: Iterable[tuple[str, str]]) -> int | None:
    """Return the index of the frame to show for a stack, or None if there is none.

    The innermost frame of user code is preferred, then a package's, then torch's, then Python's. Frames of this package
    are never shown.

    Args:
        frames: File and function of each frame, innermost first.
    """
    stack = list(frames)
    owners = [owner_of(file, function) for file, function in stack]
    if len(stack) > 1 and stack[-1] == (_STRING, "<module>") and _STARTS_PROCESS.search(stack[-2][0]):
        owners[-1] = FrameOwner.STANDARD_LIBRARY
    shown = [(order, index) for index, owner in enumerate(owners) if (order := _PREFERENCE[owner]) is not None]
    return min(shown)[1] if shown else None


def _preference(owner: FrameOwner) -> int | None:
    """Return the order of preference in which frames are shown, 0 first; None for frames that are never shown."""
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


_PREFERENCE: Final = {owner: _preference(owner) for owner in FrameOwner}
