"""Where in the user's code a call comes from: the first frame outside torch."""

from __future__ import annotations

import os
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

import torch

from otel_torchdist.tape.names import OTHER
from otel_torchdist.tape.records import CallSiteName

if TYPE_CHECKING:
    from otel_torchdist.tape.names import NamesWriter

MAX_FRAMES: Final = 64
MAX_CACHED: Final = 16_384
_OURS: Final = Path(__file__).parents[1]
_NO_FILE: Final = ("<frozen ", "<eval_with_key>")
"""Python's own start, and what torch.fx has generated."""
# Not all of our package: the training script of the demo, which lies there too, is a user like any other.
_LIBRARIES: Final = (f"{Path(torch.__file__).parent}/", f"{_OURS}/capture/", f"{_OURS}/_guard.py", *_NO_FILE)
_BETWEEN: Final = ("/contextlib.py", "/functools.py", "/typing_extensions.py", "/warnings.py")
"""What torch's decorators (`contextmanager`, `deprecated`) put between its own frames."""


class CallSites:
    """Finds call sites and remembers which code is the user's."""

    def __init__(self, names: NamesWriter) -> None:
        """Intern names into `names`."""
        self._names = names
        self._is_library: dict[CodeType, bool] = {}

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """The first frame outside torch from `frame` on; None when there is none in reach.

        A call from C++ (DDP's reducer on an autograd thread) has no Python frame.
        """
        is_library = self._is_library
        for _ in range(MAX_FRAMES):
            if frame is None:
                return None
            code = frame.f_code
            library = is_library.get(code)
            if library is None:
                library = self._classify(code)
            if not library:
                return frame
            frame = frame.f_back
        return None

    def _classify(self, code: CodeType) -> bool:
        if len(self._is_library) >= MAX_CACHED:
            self._is_library.clear()
        file = code.co_filename
        # Where Inductor puts the code that it generates; it sets the variable itself before it does.
        generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        library = file.startswith(_LIBRARIES) or file.endswith(_BETWEEN)
        library = library or bool(generated and file.startswith(os.path.abspath(generated)))
        self._is_library[code] = library
        return library

    def name_of(self, code: CodeType | None, instruction: int) -> int:
        """Name id of the line that an instruction (`f_lasti`) belongs to; `OTHER` when there is no code."""
        if code is None:
            return OTHER
        function = getattr(code, "co_qualname", code.co_name)
        return self._names.intern(CallSiteName(function, code.co_filename, _line(code, instruction)))


def _line(code: CodeType, instruction: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return next(lines, None) or code.co_firstlineno
