"""Tracebacks, faulthandler dumps, and the stack of a timed-out call, printed by NCCL's watchdog.

They span several lines, which may be interleaved with lines of other ranks. Prefixes of launcher or torch tell ranks
apart. Without prefixes, consecutive lines are assumed to belong together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.text import readable
from otel_torchdist.sources.evidence.facts import ProcessStacks, ReportedException, TimedOutCallStack
from otel_torchdist.sources.evidence.lines import LogLine, statement
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind

MARKERS: Final = (b"(most recent call", b"Fatal Python error", b"terminate called", b"of the failed collective: ")
MAX_FRAMES: Final = 512
MAX_THREADS: Final = 1_024
MAX_OPEN: Final = 1_024
"""Upper bound on the unfinished stacks of different ranks."""
MAX_FOREIGN: Final = 2_000
"""Lines of other ranks after which a stack counts as finished."""
_FRAME: Final = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d{1,9})(?:,? in (?P<function>.+))?')
_NUMBERED: Final = re.compile(r"#\d+ (?P<names>.+):(?P<line>\d{1,9})\s*$")
_FROM: Final = " from "
_THREAD: Final = re.compile(
    r"\s*(?P<current>Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>[^]]*)\])? \(most recent call first\):"
)
_FATAL: Final = re.compile(r"Fatal Python error: (?P<what>.+)")
_TERMINATE: Final = re.compile(
    r"terminate called (?:after throwing an instance of '[^']*'|without an active exception)"
)
_EXCEPTION: Final = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::\s?(?P<what>.*))?$")
_LAUNCHERS: Final = ("ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions of launchers, which only report that a rank has failed."""
_CURRENT: Final = "current thread"
_Key = tuple[str, int | None]


@dataclass
class _OpenStack:
    """A stack whose lines are still being read.

    Attributes:
        first: Its first line.
        is_dump: Whether faulthandler writes it. If neither this nor `is_numbered` is true, it is a traceback.
        is_numbered: Whether a watchdog writes it, with numbered frames.
        crash: Cause of the crash that made faulthandler write it, or ''.
        foreign: Number of lines of other ranks since its first line.
    """

    first: LogLine
    is_dump: bool = False
    is_numbered: bool = False
    crash: str = ""
    frames: list[CallSiteName] = field(default_factory=list[CallSiteName])
    threads: list[ThreadStack] = field(default_factory=list[ThreadStack])
    foreign: int = 0


class PythonStacks:
    """Reader of stacks in the lines of one file."""

    def __init__(self, path: str) -> None:
        """Begin at the start of a file."""
        self._path = path
        self._open: dict[_Key, _OpenStack] = {}

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line may belong to a stack."""
        return bool(self._open)

    def read(self, line: LogLine) -> Iterator[Statement]:
        """Read a line, and yield the stacks that it completes."""
        key = (line.label, line.rank)
        if (new_stack := self._new_stack(line)) is not None:
            # The watchdog's stack is one message of several lines. Only its first line states the rank.
            yield from self._open_stack((line.label, None) if new_stack.is_numbered else key, line, new_stack)
            return
        stack = self._open.get(key)
        if stack is None:
            yield from self._count_foreign_line()
        elif stack.is_dump:
            yield from self._read_dump(key, stack, line)
        elif stack.is_numbered:
            yield from self._read_numbered(key, stack, line)
        else:
            yield from self._read_traceback(key, stack, line)

    def end(self) -> Iterator[Statement]:
        """Yield the unfinished stacks at the end of the file."""
        for key in list(self._open):
            yield from self._close(key)

    def _new_stack(self, line: LogLine) -> _OpenStack | None:
        if "Traceback (most recent call last)" in line.text:
            return _OpenStack(line)
        if "Stack trace of the failed collective: " in line.text:
            return _OpenStack(line, is_numbered=True)
        fatal = _FATAL.search(line.text)
        if fatal is not None:
            return _OpenStack(line, is_dump=True, crash=readable(fatal["what"], MAX_TEXT))
        if _TERMINATE.search(line.text) is not None:
            return _OpenStack(line, is_dump=True, crash=readable(line.body.strip(), MAX_TEXT))
        if _THREAD.match(line.body) is not None and (line.label, line.rank) not in self._open:
            dump = _OpenStack(line, is_dump=True)
            _add_thread(dump, line)
            return dump
        return None

    def _open_stack(self, key: _Key, line: LogLine, new_stack: _OpenStack) -> Iterator[Statement]:
        yield from self._close(key)
        if len(self._open) < MAX_OPEN:
            self._open[key] = new_stack
        if new_stack.crash:
            yield statement(new_stack.first, self._path, StatementKind.CRASHED, new_stack.crash)

    def _count_foreign_line(self) -> Iterator[Statement]:
        for key, stack in list(self._open.items()):
            stack.foreign += 1
            if stack.foreign > MAX_FOREIGN:
                yield from self._close(key)

    def _read_traceback(self, key: _Key, stack: _OpenStack, line: LogLine) -> Iterator[Statement]:
        if not line.body.strip():
            return
        if line.body[0].isspace():
            frame = _FRAME.match(line.body)
            if frame is not None and len(stack.frames) < MAX_FRAMES:
                stack.frames.append(_site(frame))
            return
        del self._open[key]
        exception = _EXCEPTION.match(line.body)
        if exception is None or not stack.frames or exception["type"].rpartition(".")[2] in _LAUNCHERS:
            return
        text = readable(line.body.strip(), MAX_TEXT)
        yield statement(
            stack.first, self._path, StatementKind.RAISED, text, ReportedException(text, tuple(reversed(stack.frames)))
        )

    def _read_dump(self, key: _Key, stack: _OpenStack, line: LogLine) -> Iterator[Statement]:
        frame = _FRAME.match(line.body)
        if frame is not None:
            if stack.threads and len(stack.threads[-1].frames) < MAX_FRAMES:
                last = stack.threads[-1]
                stack.threads[-1] = ThreadStack(last.thread, last.name, (*last.frames, _site(frame)))
        elif _THREAD.match(line.body) is not None:
            _add_thread(stack, line)
        elif line.body.strip() and stack.threads:
            yield from self._close(key)

    def _read_numbered(self, key: _Key, stack: _OpenStack, line: LogLine) -> Iterator[Statement]:
        site = _numbered_site(line.body)
        if site is None:
            yield from self._close(key)
        elif len(stack.frames) < MAX_FRAMES:
            stack.frames.append(site)

    def _close(self, key: _Key) -> Iterator[Statement]:
        stack = self._open.pop(key, None)
        if stack is None:
            return
        if stack.threads:
            text = stack.crash or f"faulthandler: {len(stack.threads)} threads"
            yield statement(
                stack.first,
                self._path,
                StatementKind.STACKS,
                text,
                ProcessStacks(_in_order(stack.threads), crash=stack.crash),
            )
        if stack.is_numbered and stack.frames:
            yield statement(
                stack.first, self._path, StatementKind.CALLED, "called in", TimedOutCallStack(tuple(stack.frames))
            )


def _add_thread(stack: _OpenStack, line: LogLine) -> None:
    match = _THREAD.match(line.body)
    if match is None or len(stack.threads) >= MAX_THREADS:
        return
    # The number is pthread's, not the kernel's thread id. Names are printed since Python 3.14.
    name = _CURRENT if match["current"].startswith("Current") else match["name"] or ""
    stack.threads.append(ThreadStack(0, readable(name, MAX_TEXT), ()))


def _in_order(threads: list[ThreadStack]) -> tuple[ThreadStack, ...]:
    """Sort threads: the current thread first, then from the oldest, which is the main thread, to the newest."""
    return tuple(sorted(reversed(threads), key=lambda thread: thread.name != _CURRENT))


def _site(match: re.Match[str]) -> CallSiteName:
    function = (match["function"] or "").strip()
    return CallSiteName(readable(function, MAX_TEXT), readable(match["file"]), int(match["line"]))


def _numbered_site(text: str) -> CallSiteName | None:
    """Return the call site on a line like `#1 function from file:line`; None for other lines."""
    match = _NUMBERED.match(text)
    names = match["names"] if match is not None else ""
    begin = names.rfind(_FROM, 1, len(names) - 1)  # neither name is empty
    if match is None or begin < 0:
        return None
    function, file = names[:begin].strip(), names[begin + len(_FROM) :]
    return CallSiteName(readable(function, MAX_TEXT), readable(file), int(match["line"]))
