"""Finds what the calling thread runs: the function by which threads are known that are new each time.

Found once for each way in which a thread's calls are recorded, not per call: see `CallPaths`.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Final

from otel_torchdist.capture.call_sites import describe_code, owner_of_code
from otel_torchdist.code_owner import FrameOwner
from otel_torchdist.model.names import OTHER, SPARE_OF_LABELS, CallerName
from otel_torchdist.naming import name_caller
from otel_torchdist.tape.layout import MAIN_CALLER, MAX_CALLERS, NO_CALLER

if TYPE_CHECKING:
    from otel_torchdist.tape.names.writer import NamesWriter

MAX_DEPTH: Final = 1_000
_frame: Final = sys._getframe  # pyright: ignore[reportPrivateUsage]  # its only name
_BOOTSTRAP: Final = threading.Thread._bootstrap.__code__  # type: ignore[attr-defined]  # pyright: ignore
"""The outermost code of each thread that Python has started; those of autograd have none of it."""


class Callers:
    """The callers that one tape's names describe."""

    def __init__(self, names: NamesWriter) -> None:
        """Describe callers in a dictionary."""
        self._names = names
        self._known: dict[str, int] = {}

    def here(self) -> int:
        """The number of the calling thread's caller; `NO_CALLER` if it is not known."""
        if threading.get_ident() == threading.main_thread().ident:
            return MAIN_CALLER
        function = _outermost_function()
        known = self._known.get(function)
        if known is not None or not function:
            return known or NO_CALLER
        number = MAIN_CALLER + 1 + len(self._known)
        if number > MAX_CALLERS or self._names.find_room(CallerName(number, function), SPARE_OF_LABELS) == OTHER:
            return NO_CALLER
        self._known[function] = number
        return number


def _outermost_function() -> str:
    """The outermost function of the program on the stack, else of a library; '' if Python has not started the thread.

    Threads of autograd are such: what is on their stacks differs from call to call.
    """
    frame: FrameType | None = _frame(1)
    program: FrameType | None = None
    library: FrameType | None = None
    for _ in range(MAX_DEPTH):
        if frame is None or frame.f_code is _BOOTSTRAP:
            break
        owner = owner_of_code(frame.f_code)
        if owner is FrameOwner.USER:
            program = frame
        elif owner is not FrameOwner.STANDARD_LIBRARY:
            library = frame
        frame = frame.f_back
    found = program or library
    if frame is None or frame.f_code is not _BOOTSTRAP or found is None:
        return ""
    site = describe_code(found.f_code, found.f_lasti)
    return name_caller(site.function, site.file)
