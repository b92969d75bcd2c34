"""Where in the user's code a call comes from: the first frame outside torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from otel_torchdist.tape.names import OTHER, SPARE_OF_CALL_SITES
from otel_torchdist.tape.records import CallSiteName

if TYPE_CHECKING:
    from otel_torchdist.tape.names import NamesWriter

MAX_CACHED: Final = 16_384
_OURS: Final = Path(__file__).parents[1]
_NO_FILE: Final = ("<frozen ", "<eval_with_key>")
"""Python's own start, and what torch.fx has generated."""
# Not all of our package: the training script of the demo, which lies there too, is a user like any other.
_OUR_FILES: Final = (f"{_OURS}/capture/", f"{_OURS}/guard.py", f"{_OURS}/first_group.py")
_LIBRARIES: Final = (f"{Path(torch.__file__).parent}/", *_OUR_FILES, *_NO_FILE)
_BETWEEN: Final = ("/contextlib.py", "/functools.py", "/typing_extensions.py", "/warnings.py")
"""What torch's decorators (`contextmanager`, `deprecated`) put between its own frames."""

CallSiteKey: TypeAlias = tuple[int, int]
"""The `id` of a code object and the instruction in it (`f_lasti`)."""
NOWHERE: Final[CallSiteKey] = (0, 0)

_WITHIN_REACH: Final = range(64)
_frame: Final[Callable[[int], FrameType]] = sys._getframe  # pyright: ignore[reportPrivateUsage]  # its only name


class CallSites:
    """Finds call sites and remembers which code is the user's.

    Code is known by its `id`, for to hash a code object is to hash all of its constants.
    """

    def __init__(self, names: NamesWriter) -> None:
        """Intern names into `names`."""
        self._names = names
        self._is_library: dict[int, bool] = {}
        self._codes: dict[int, CodeType] = {}

    def find(self, depth: int) -> CallSiteKey:
        """The first call site outside torch.

        Args:
            depth: Frames to pass over: 0 begins with the caller.

        Returns:
            `NOWHERE` when there is none in reach. A call from C++ (DDP's reducer on an autograd thread) has no Python
            frame at all.
        """
        try:
            frame: FrameType | None = _frame(depth + 1)
        except ValueError:
            return NOWHERE
        is_library = self._is_library
        for _ in _WITHIN_REACH:
            if frame is None:
                break
            code = frame.f_code
            identity = id(code)
            library = is_library.get(identity)
            if library is None:
                library = self._classify(code)
            if not library:
                return identity, frame.f_lasti
            frame = frame.f_back
        return NOWHERE

    def code_at(self, site: CallSiteKey) -> CodeType | None:
        """The code of a site that was found just now. While somebody holds it, its `id` is not another code's."""
        return self._codes.get(site[0])

    def _classify(self, code: CodeType) -> bool:
        if len(self._is_library) >= MAX_CACHED:
            self._is_library.clear()
            self._codes.clear()
        file = code.co_filename
        # Where Inductor puts the code that it generates; it sets the variable itself before it does.
        generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        library = file.startswith(_LIBRARIES) or file.endswith(_BETWEEN)
        library = library or bool(generated and file.startswith(os.path.abspath(generated)))
        self._codes[id(code)] = code
        self._is_library[id(code)] = library
        return library

    def name_of(self, code: CodeType | None, instruction: int) -> int:
        """Name id of the line that an instruction (`f_lasti`) belongs to; `OTHER` when there is no code."""
        if code is None:
            return OTHER
        function = getattr(code, "co_qualname", code.co_name)
        return self._names.intern(
            CallSiteName(function, code.co_filename, _line(code, instruction)), SPARE_OF_CALL_SITES
        )


def _line(code: CodeType, instruction: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return next(lines, None) or code.co_firstlineno
