"""Histories of ranks, from fake tapes that a test writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from otel_torchdist.analysis.statistics.result import Row, Statistics
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.names import GroupName
from otel_torchdist.sources.history.tapes import history_of
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.fake_tape import WORLD, FakeTape

MS: Final = 1_000_000
MIB: Final = 1 << 20


class Ranks:
    """The tapes of some ranks, all from the same clock, which starts at 0."""

    def __init__(self, directory: Path, count: int = 3, capacity: int = 1024, **identity: Any) -> None:
        self.group = dataclasses.replace(WORLD, ranks=tuple(range(count)))
        self.tapes = [FakeTape(directory, rank, count, capacity=capacity, **identity) for rank in range(count)]

    def call(
        self,
        rank: int,
        at_ms: float,
        until_ms: float | None = None,
        operation: str = "all_reduce",
        *,
        how: How = How.CALL,
        group: GroupName | None = None,
        waits_ms: float | None = None,
        **record: Any,
    ) -> None:
        """Record a call. Without `until_ms` it stays open. `waits_ms` is when a thread begins to wait for it."""
        tape, entered_ns = self.tapes[rank], int(at_ms * MS)
        number = tape.begin(operation, group or self.group, at=entered_ns, **record)
        if waits_ms is not None:
            tape.mark(number, Word.RETURNED, 1_000)
            tape.mark(number, Word.WAIT_ENTERED, int(waits_ms * MS) - entered_ns)
        if until_ms is not None:
            tape.writer.complete(number, entered_ns, int(until_ms * MS), how)

    def send(self, source: int, destination: int, at_ms: float, until_ms: float | None, **record: Any) -> None:
        """Record a send of 1 MiB."""
        flags = int(Flag.POINT_TO_POINT)
        self.call(source, at_ms, until_ms, "send", flags=flags, peer=destination, message_bytes=MIB, **record)

    def receive(self, source: int, destination: int, at_ms: float, until_ms: float | None, **record: Any) -> None:
        """Record a receive, which contributes no bytes into a tensor of 16 bytes."""
        flags = int(Flag.POINT_TO_POINT | Flag.END_BY_WAIT)
        self.call(destination, at_ms, until_ms, "recv", flags=flags, peer=source, message_bytes=0, **record)

    def histories(self) -> list[RankHistory]:
        """Read the tapes."""
        return [history_of(TapeReader.of_writer(tape.writer)) for tape in self.tapes]

    def close(self) -> None:
        """Close the tapes."""
        for tape in self.tapes:
            tape.writer.close()


def only_row(found: Statistics, operation: str) -> Row:
    """Return the only row of an operation."""
    [row] = [row for row in found.rows if row.operation == operation]
    return row
