"""Reads the calls of some steps from this node's tapes, and encodes them as the segments that agents exchange."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.model.history import Activity, RankHistory
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.sources.archive.columns import DamagedSegmentError
from otel_torchdist.sources.archive.decoding import decode
from otel_torchdist.sources.archive.encoding import encode
from otel_torchdist.sources.archive.format import HEAD_SIZE, decode_head
from otel_torchdist.sources.archive.reading import history_in
from otel_torchdist.sources.archive.segment import Segment
from otel_torchdist.sources.archive.tapes import moment_of, origin_of, read_to_end
from otel_torchdist.tape.reading.reader import TapeReader

_FIRST_COUNT: Final = 1_024
"""Newest records to read at first. The number is quadrupled until the records contain all steps."""
MAX_STEPS: Final = 64
MAX_BYTES: Final = 1 << 20
"""Maximum bytes of one node's segments: there may be hundreds of nodes, and the calls analyzed are limited anyway."""


@dataclass(frozen=True, slots=True)
class StepRange:
    """A range of step numbers, both ends included."""

    first: int
    last: int

    def to_bytes(self) -> bytes:
        """Encode the range as a request to other agents."""
        return f"{self.first} {self.last}".encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> StepRange | None:
        """Decode a request; None if it is malformed, or asks for more than `MAX_STEPS` steps."""
        words = body[:64].split(b" ")
        if len(words) != 2 or not all(word.isdigit() for word in words):
            return None
        first, last = map(int, words)
        return cls(first, last) if 0 <= first <= last < first + MAX_STEPS else None


def segments_of(tapes: Iterable[Path], steps: StepRange) -> bytes:
    """Return the calls of some steps, as one segment for each readable tape.

    Args:
        tapes: The tapes; this process must write none of them.
        steps: The steps.
    """
    segments: list[bytes] = []
    size = 0
    for path in tapes:
        with contextlib.suppress(TapeError):  # removed or damaged: the reader of all tapes warns of it
            segment = _segment_of(path, steps)
            size += len(segment)
            if size > MAX_BYTES:
                break
            segments.append(segment)
    return b"".join(segments)


def histories_in(content: bytes, most: int) -> Iterator[RankHistory]:
    """Yield the histories in an agent's answer, up to the first damaged segment.

    Args:
        content: Concatenated segments.
        most: Number of the agent's ranks.
    """
    offset = 0
    for _ in range(most):
        head = decode_head(content[offset : offset + HEAD_SIZE])
        if head is None:
            return
        end = offset + HEAD_SIZE + head.size
        try:
            history = history_in(decode(content[offset:end]))
        except DamagedSegmentError:
            return
        if history is not None:
            yield history
        offset = end


def operations_in(content: bytes) -> int:
    """Return the number of calls in concatenated segments, according to their heads."""
    total, offset = 0, 0
    while (head := decode_head(content[offset : offset + HEAD_SIZE])) is not None:
        total += head.rows[0]
        offset += HEAD_SIZE + head.size
    return total


def _segment_of(path: Path, steps: StepRange) -> bytes:
    with contextlib.closing(TapeReader(path)) as tape:
        calls, marks, activities = _read_back_to(tape, steps)
        tape.names.refresh()
        status = tape.status()
        segment = Segment(
            origin_of(tape, status),
            moment_of(tape, status, tape.cursor, status.heartbeat_ns),
            archived=0,
            ended=[call for call in calls if steps.first <= call.step <= steps.last],
            steps=[mark for mark in marks if steps.first - 1 <= mark.step <= steps.last],
            activities=[activity for activity in activities if steps.first <= activity.step <= steps.last],
        )
        return encode(segment, tape.names)


def _read_back_to(tape: TapeReader, steps: StepRange) -> tuple[list[Operation], list[StepMark], list[Activity]]:
    """Read the newest records, back to the end of the step before the first requested step."""
    count = _FIRST_COUNT
    while True:
        reader = tape.another()
        reader.skip_to_newest(count)
        calls, marks, activities = read_to_end(reader)
        if count >= tape.capacity or (marks and marks[0].step < steps.first):
            return sorted(calls, key=lambda call: call.number), marks, activities
        count *= 4
