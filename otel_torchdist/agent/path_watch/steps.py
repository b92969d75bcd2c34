"""The calls of some steps, from the tapes of this node and as agents send them to each other: as segments."""

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
from otel_torchdist.sources.archive.tapes import moment_of, origin_of, rest_of
from otel_torchdist.tape.reading.reader import TapeReader

_FIRST_TRY: Final = 1_024
"""Records, from the newest on; four times as many are read until the steps are among them."""
MAX_STEPS: Final = 64
MAX_BYTES: Final = 1 << 20
"""Of the segments of one node: there may be hundreds of nodes, and more calls than that are not looked at anyway."""


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps by number.

    Attributes:
        first: The first of them.
        last: The last of them.
    """

    first: int
    last: int

    def to_bytes(self) -> bytes:
        """As a question to other agents."""
        return f"{self.first} {self.last}".encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> StepRange | None:
        """From a question; None if it is none, or asks for too many steps."""
        words = body[:64].split(b" ")
        if len(words) != 2 or not all(word.isdigit() for word in words):
            return None
        first, last = map(int, words)
        return cls(first, last) if 0 <= first <= last < first + MAX_STEPS else None


def segments_of(tapes: Iterable[Path], steps: StepRange) -> bytes:
    """The calls of some steps, a segment for each rank whose tape can be read and still holds them.

    Args:
        tapes: The tapes, none of which this process writes.
        steps: The steps.
    """
    found: list[bytes] = []
    size = 0
    for path in tapes:
        with contextlib.suppress(TapeError):  # removed or damaged: the reader of all tapes warns of it
            segment = _segment_of(path, steps)
            size += len(segment)
            if size > MAX_BYTES:
                break
            found.append(segment)
    return b"".join(found)


def histories_in(content: bytes, most: int) -> Iterator[RankHistory]:
    """The histories in the answer of an agent, up to the first that is damaged.

    Args:
        content: Segments, one behind the other.
        most: How many ranks the agent has.
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
    """How many calls segments hold, by their heads."""
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
            activities=[one for one in activities if steps.first <= one.step <= steps.last],
        )
        return encode(segment, tape.names)


def _read_back_to(tape: TapeReader, steps: StepRange) -> tuple[list[Operation], list[StepMark], list[Activity]]:
    """Read the newest records, as many as it takes to have the end of the step before the first one."""
    count = _FIRST_TRY
    while True:
        reader = tape.another()
        reader.skip_to_newest(count)
        calls, marks, activities = rest_of(reader)
        if count >= tape.capacity or (marks and marks[0].step < steps.first):
            return sorted(calls, key=lambda call: call.number), marks, activities
        count *= 4
