"""Reads logs of any size: only lines with a marker, a known phrase, are parsed.

In gigabytes of log, a few lines matter. The log is read in blocks, and markers are searched as bytes; other lines are
never decoded.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import BinaryIO, Final

from otel_torchdist.sources.evidence.facts import ReportedProgress
from otel_torchdist.sources.evidence.lines import MAX_LINE, LogLine, parsed
from otel_torchdist.sources.evidence.statements import Statement, StatementKind, has_failure
from otel_torchdist.sources.evidence.texts import errors, python_stacks, torchrun
from otel_torchdist.sources.evidence.texts.process_groups import DESYNC, FINGERPRINTS, GLOO, WATCHDOG
from otel_torchdist.sources.evidence.texts.store import STORE
from otel_torchdist.system.files.unpacking import GzipStream, MeteredFile, TooLargeError, UnpackBudget

MAX_KEPT: Final = 50_000
_REPLACED: Final = (StatementKind.PROGRESS, StatementKind.STACKS)
"""Kinds where the last statement of a rank and group replaces earlier ones."""


class DistinctStatements:
    """Statements of a log, without repetitions.

    Attributes:
        dropped: Number of statements left out because of `max_kept`.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: dict[Hashable, Statement] = {}
        self.dropped = 0

    @property
    def statements(self) -> list[Statement]:
        """The kept statements, in the order of lines."""
        return sorted(self._kept.values(), key=lambda statement: statement.source.line)

    def add(self, statements: Iterable[Statement]) -> None:
        """Add statements, and merge repetitions."""
        for statement in statements:
            key = _key(statement)
            earlier = self._kept.get(key)
            if earlier is None and len(self._kept) >= self._max_kept:
                self.dropped += 1
            elif earlier is None:
                self._kept[key] = statement
            else:
                self._kept[key] = _merged(earlier, statement)


def _key(statement: Statement) -> Hashable:
    author = (statement.rank, statement.local_rank, statement.pid, statement.label)
    fact, group = statement.fact, statement.group
    if isinstance(fact, ReportedProgress):
        return statement.kind, author, group, fact.failed
    if statement.kind is StatementKind.TIMED_OUT and fact is not None:
        # The watchdog repeats the text when its thread ends, then with the group's name.
        return statement.kind, author, group.rank if group is not None else None, fact
    return statement.kind, author, group, fact if statement.kind is StatementKind.ENDED else statement.text


def _merged(earlier: Statement, later: Statement) -> Statement:
    kept = later if earlier.kind in _REPLACED else earlier
    group = max(earlier.group, later.group, key=lambda mark: bool(mark and mark.uid))
    return dataclasses.replace(kept, group=group, repeated=earlier.repeated + 1)


BLOCK_BYTES: Final = 4 << 20
MAX_PIECE: Final = 4 << 20
"""Bytes after which a line is split into pieces."""
FORMATS: Final = (WATCHDOG, GLOO, DESYNC, FINGERPRINTS, STORE)
MARKERS: Final = (
    *(marker for line_format in FORMATS for marker in line_format.markers),
    *torchrun.MARKERS,
    *python_stacks.MARKERS,
    *errors.MARKERS,
)
MAX_UNKNOWN_ERRORS: Final = 50
"""Upper bound on the errors of unknown kinds kept from a log."""
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_log(
    stream: BinaryIO, path: str, budget: UnpackBudget | None = None, max_kept: int = MAX_KEPT
) -> tuple[list[Statement], list[str]]:
    """Read a log to its end.

    Args:
        stream: The log, at its beginning. It may be compressed with gzip, or encoded in UTF-16.
        path: Path for statements and warnings.
        budget: Remaining budget for decompressed bytes; None for the budget of a single log.
        max_kept: Upper bound on the different statements kept.

    Returns:
        The statements in the order of lines, without repetitions; and a line for each failure to read.
    """
    readers = _Readers(path)
    distinct, unknown_errors = DistinctStatements(max_kept), DistinctStatements()
    warnings: list[str] = []
    try:
        for number, content in _lines(_blocks(stream, budget or UnpackBudget()), readers):
            line = parsed(number, content)
            statements = [*readers.read(line)]
            distinct.add(statements)
            if not statements and len(unknown_errors.statements) < MAX_UNKNOWN_ERRORS:
                unknown_errors.add(readers.unknown_error(line))
    except (OSError, EOFError, zlib.error) as error:  # a truncated or damaged compressed log
        warnings.append(f"{path}: read only up to the damaged part: {error}")
    except TooLargeError as error:
        warnings.append(f"{path}: {error}")
    distinct.add(readers.end())
    if distinct.dropped:
        warnings.append(f"{path}: {distinct.dropped} messages are left out: too many are different")
    return distinct.statements if has_failure(distinct.statements) else [
        *distinct.statements,
        *unknown_errors.statements,
    ], warnings


class _Readers:
    """Readers of all formats that may occur in a log."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._failures = torchrun.TorchrunReports(path)
        self._stacks = python_stacks.PythonStacks(path)
        self._errors = errors.UnstructuredErrors(path)

    @property
    def needs_next_line(self) -> bool:
        """Whether the next line is needed even without a marker."""
        return self._failures.needs_next_line or self._stacks.needs_next_line or self._errors.needs_next_line

    def read(self, line: LogLine) -> Iterator[Statement]:
        is_in_table = self._failures.is_in_table(line)
        yield from self._failures.read(line)
        if is_in_table:
            return
        yield from self._stacks.read(line)
        for line_format in FORMATS:
            yield from line_format.read(line, self._path)
        yield from self._errors.read(line)

    def unknown_error(self, line: LogLine) -> Iterator[Statement]:
        """Yield an error of unknown kind, from a line that no reader recognized."""
        return self._errors.unknown_error(line)

    def end(self) -> Iterator[Statement]:
        yield from self._failures.end()
        yield from self._stacks.end()


def _blocks(stream: BinaryIO, budget: UnpackBudget) -> Iterator[bytes]:
    read: Callable[[int], bytes] = stream.read
    head = read(BLOCK_BYTES)
    if head.startswith(_GZIP):
        stream.seek(0)
        read = _Unpacked(stream, budget).read
        head = read(BLOCK_BYTES)
    decoder = codecs.getincrementaldecoder("utf-16")("replace") if head.startswith(_UTF_16) else None
    while head:
        yield decoder.decode(head).encode("utf-8", "replace") if decoder is not None else head
        head = read(BLOCK_BYTES)


class _Unpacked:
    """A decompressed log. It is read in whole blocks, up to its end or the first damage."""

    def __init__(self, stream: BinaryIO, budget: UnpackBudget) -> None:
        self._stream = GzipStream(MeteredFile(stream, budget))
        self._budget = budget

    def read(self, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end. If bytes precede an error, the next call raises it."""
        block = io.BytesIO()
        try:
            while block.tell() < size and (part := self._stream.read(size - block.tell())):
                self._budget.take(len(part))
                block.write(part)
        except (OSError, EOFError, zlib.error, TooLargeError):
            if not block.tell():
                raise
        return block.getvalue()


def _lines(blocks: Iterator[bytes], readers: _Readers) -> Iterator[tuple[int, bytes]]:
    """Yield the lines to parse with their numbers, each cut to `MAX_LINE` bytes."""
    number, rest = 1, b""
    for block in blocks:
        content = rest + block
        end = content.rfind(b"\n") + 1
        if not end and len(content) < MAX_PIECE:
            rest = content
            continue
        end = end or len(content)  # a line of megabytes is split into pieces
        yield from _lines_to_parse(content[:end], number, readers)
        number += content.count(b"\n", 0, end)
        rest = content[end:]
    yield from _lines_to_parse(rest, number, readers)


def _lines_to_parse(content: bytes, number: int, readers: _Readers) -> Iterator[tuple[int, bytes]]:
    markers = _MarkerPositions(content)
    start = counted = 0
    while start < len(content):
        if not readers.needs_next_line:
            position = markers.after(start)
            if position < 0:
                return
            start = max(content.rfind(b"\n", start, position), content.rfind(b"\r", start, position), start - 1) + 1
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        number += content.count(b"\n", counted, start)
        counted = start
        yield number, _cut(content[start:end], markers.after(start) - start)
        start = end + 1


def _cut(line: bytes, marker: int) -> bytes:
    """Return the part of a long line around its marker, a position. A progress bar may be a line of megabytes."""
    if len(line) <= MAX_LINE:
        return line
    begin = max(line.rfind(b"\r", 0, marker) + 1, marker - MAX_LINE // 2, 0) if 0 <= marker < len(line) else 0
    return line[begin : begin + MAX_LINE]


class _MarkerPositions:
    """The next position of each marker, so that the content is searched only once for each marker."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._next = {marker: content.find(marker) for marker in MARKERS}

    def after(self, start: int) -> int:
        """Return the position of the first marker at or after `start`; -1 without one."""
        for marker, position in list(self._next.items()):
            if 0 <= position < start:
                position = self._content.find(marker, start)
                self._next[marker] = position
            if position < 0:
                del self._next[marker]
        return min(self._next.values(), default=-1)
