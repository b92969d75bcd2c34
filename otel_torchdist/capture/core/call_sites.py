"""Finds call sites, the innermost lines of user code, and the outermost functions of threads.

The outermost function tells short-lived threads apart. It is found when a call is planned, not per call.
"""

from __future__ import annotations

import enum
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_torchdist.model.code_owner import FrameOwner, is_process_start, owner_of, package_of
from otel_torchdist.model.names import OTHER, SPARE_OF_CALL_SITES, SPARE_OF_LABELS, CallerName, CallSiteName
from otel_torchdist.model.text import name_caller
from otel_torchdist.tape.layout import MAIN_CALLER, MAX_CALLERS, NO_CALLER

if TYPE_CHECKING:
    from otel_torchdist.native.recording import NativeRecording
    from otel_torchdist.tape.names.writer import NamesWriter

MAX_CACHED: Final = 2_048
CALLERS: Final = 6
"""Number of a call site's calling frames that distinguish calls. Six frames reach the caller of a helper through a
module's `__call__`, and one frame more. The native library uses more; in Python, each frame costs 0.1 µs per call."""

CallSiteKey: TypeAlias = tuple[int, int, int]
"""The `id` of a code object, the instruction in it (`f_lasti`), and a hash of its calling frames."""
NOWHERE: Final[CallSiteKey] = (0, 0, 0)

_SEARCHED_FRAMES: Final = range(64)
_HASHED_CALLERS: Final = range(CALLERS)
_HASH_FACTOR: Final = 65_537
_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")
_frame: Final[Callable[[int], FrameType]] = sys._getframe  # pyright: ignore[reportPrivateUsage]  # it has no public name


class CodeKind(enum.IntEnum):
    """Kinds of code on the stack of a call; `CodeKind` in native/source/call_site.h."""

    BETWEEN = 1
    """Code of torch, Python or otel_torchdist. Skipped."""
    PACKAGE = 2
    """Code of another library. Skipped, unless none of its callers is user code."""
    PROGRAM = 3
    """User code: the call site."""
    PROGRAM_ALONE = 4
    """User code whose calling frames are ignored, because they differ nearly every time."""


_BETWEEN: Final = int(CodeKind.BETWEEN)
_PACKAGE: Final = int(CodeKind.PACKAGE)
_PROGRAM: Final = int(CodeKind.PROGRAM)


class CallSites:
    """Finder of call sites, with a cache of the kinds of code objects.

    Code objects are identified by `id`: hashing a code object hashes all of its constants.

    Attributes:
        is_reduced: Whether no call site is found, to save time.
    """

    def __init__(self, names: NamesWriter, native: NativeRecording | None = None) -> None:
        self._names = names
        self._native = native
        self._kinds: dict[int, int] = {}
        self._codes: dict[int, CodeType] = {}
        self._without_callers: dict[int, CodeType] = {}
        self.is_reduced = False

    def find(self, depth: int) -> CallSiteKey:
        """Find the innermost line of user code.

        Args:
            depth: Number of frames to skip; 0 starts with the caller.

        Returns:
            The call site's key. Without user code on the stack, a library's line; without Python frames, `NOWHERE` (a
            call from C++, such as DDP's reducer on an autograd thread).
        """
        if self.is_reduced:
            return NOWHERE
        try:
            frame: FrameType | None = _frame(depth + 1)
        except ValueError:
            return NOWHERE
        kinds = self._kinds
        library_site = NOWHERE
        callers = 0
        for _ in _SEARCHED_FRAMES:
            if frame is None:
                break
            code = frame.f_code
            identity = id(code)
            kind = kinds.get(identity) or self._classify(code)
            if kind != _BETWEEN:
                if kind != _PACKAGE:
                    instruction = frame.f_lasti
                    if kind == _PROGRAM:
                        for _ in _HASHED_CALLERS:
                            frame = frame.f_back
                            if frame is None:
                                break
                            callers = callers * _HASH_FACTOR + frame.f_lasti
                    return identity, instruction, callers
                callers = hash((callers, identity, frame.f_lasti))
                if library_site is NOWHERE:
                    library_site = identity, frame.f_lasti, 0
            frame = frame.f_back
        return library_site

    def code_at(self, site: CallSiteKey) -> CodeType | None:
        """Return the code object of a site that was just found. Hold a reference to keep its `id` unique."""
        return self._codes.get(site[0])

    def ignore_callers(self, site: CallSiteKey) -> None:
        """Ignore the callers of a site's code from now on. If they never repeat, each call would be planned."""
        code = self._codes.get(site[0])
        if code is not None and len(self._without_callers) < MAX_CACHED:
            self._without_callers[id(code)] = code
            self._forget()

    def _classify(self, code: CodeType) -> int:
        if len(self._kinds) >= MAX_CACHED:
            self._forget()
        identity = id(code)
        kind = _kind_of(code) if identity not in self._without_callers else CodeKind.PROGRAM_ALONE
        self._codes[identity] = code
        self._kinds[identity] = int(kind)
        if self._native is not None:
            self._native.learn_code(identity, int(kind))
        return int(kind)

    def _forget(self) -> None:
        self._kinds.clear()
        self._codes.clear()
        if self._native is not None:
            self._native.forget_code()

    def name_of(self, site: CallSiteKey) -> int:
        """Return the name id of a site that was just found; `OTHER` for `NOWHERE`."""
        name = self.describe(site)
        return OTHER if name is None else self._names.intern(name, SPARE_OF_CALL_SITES)

    def describe(self, site: CallSiteKey) -> CallSiteName | None:
        """Return the function and line of a site that was just found, or None for `NOWHERE`.

        The calling thread's stack shows the library function that was called there.
        """
        code = self.code_at(site)
        if code is None:
            return None
        library_code = next(
            (frame.f_code for frame in frames_called_from(site) if owner_of_code(frame.f_code) is FrameOwner.PACKAGE),
            code,
        )
        through = "" if library_code is code else f"{package_of(library_code.co_filename)}.{_name(library_code)}"
        return site_of(code, _line(code, site[1]), through)


def frames_called_from(site: CallSiteKey) -> Iterator[FrameType]:
    """Yield the frames of this thread that a call site has called, innermost first."""
    frame: FrameType | None = _frame(1)
    for _ in _SEARCHED_FRAMES:
        if frame is None or (id(frame.f_code), frame.f_lasti) == site[:2]:
            break
        yield frame
        frame = frame.f_back


def owner_of_code(code: CodeType) -> FrameOwner:
    """Return the owner of a code object."""
    if is_process_start(code.co_filename, code.co_names):
        return FrameOwner.STANDARD_LIBRARY
    return owner_of(code.co_filename, code.co_name)


def _kind_of(code: CodeType) -> CodeKind:
    match owner_of_code(code):
        case FrameOwner.USER:
            return CodeKind.PROGRAM
        case FrameOwner.PACKAGE:
            return CodeKind.PACKAGE
        case FrameOwner.TORCH | FrameOwner.OTEL_TORCHDIST | FrameOwner.STANDARD_LIBRARY:
            return CodeKind.BETWEEN


def describe_code(code: CodeType, instruction: int) -> CallSiteName:
    """Return the function and line of an instruction (`f_lasti`)."""
    return site_of(code, _line(code, instruction))


def site_of(code: CodeType, line: int | None, through: str = "") -> CallSiteName:
    """Return the call site of a code object and line.

    Args:
        code: The code object.
        line: The line; None if unknown.
        through: The library function that the line calls; '' if none.
    """
    return CallSiteName(_name(code), code.co_filename, line or 0, through)


def _name(code: CodeType) -> str:
    """Return the function's name. Dynamo renames the pieces of a function that it has split; undo that."""
    name: str = getattr(code, "co_qualname", code.co_name)
    if "torch_dynamo_resume_in_" not in name:
        return name
    outer, separator, last = name.rpartition(".")
    resumed = _RESUMED.match(last)
    return f"{outer}{separator}{resumed[1]}" if resumed else name


def _line(code: CodeType, instruction: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return next(lines, None) or code.co_firstlineno


MAX_DEPTH: Final = 1_000
_BOOTSTRAP: Final = threading.Thread._bootstrap.__code__  # type: ignore[attr-defined]  # pyright: ignore
"""The outermost code of each thread that Python started. Threads of autograd lack it."""


class Callers:
    """The outermost functions of threads (*callers* on the tape), numbered in one tape's names."""

    def __init__(self, names: NamesWriter) -> None:
        """Intern callers into a name dictionary."""
        self._names = names
        self._numbers: dict[str, int] = {}

    def current(self) -> int:
        """Return the number of the calling thread's outermost function; `NO_CALLER` if unknown."""
        if threading.get_ident() == threading.main_thread().ident:
            return MAIN_CALLER
        function = _outermost_function()
        number = self._numbers.get(function)
        if number is not None or not function:
            return number or NO_CALLER
        number = MAIN_CALLER + 1 + len(self._numbers)
        if number > MAX_CALLERS or self._names.intern_optional(CallerName(number, function), SPARE_OF_LABELS) == OTHER:
            return NO_CALLER
        self._numbers[function] = number
        return number


def _outermost_function() -> str:
    """Return the outermost function of user code on the stack, else of a library.

    Returns '' if Python did not start the thread, such as a thread of autograd: its stack differs from call to call.
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
    outermost = program or library
    if frame is None or frame.f_code is not _BOOTSTRAP or outermost is None:
        return ""
    site = describe_code(outermost.f_code, outermost.f_lasti)
    return name_caller(site.function, site.file)
