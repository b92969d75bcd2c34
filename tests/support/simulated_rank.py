"""A rank as seen on its tape: a real writer, a real reader, and no training in between."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import How, RecordKind, RunIdState, Word
from otel_torchdist.tape.reader import TapeReader
from otel_torchdist.tape.records import GroupName, SignatureName
from otel_torchdist.tape.writer import TapeWriter

RUN_ID = 0x1234ABCD_0000_4000_8000_000000000001
RUN = "1234abcd"
WORLD = GroupName("0", "default_pg", (0, 1, 2, 3), 0, "gloo", True)
SECOND = 1_000_000_000


def signature(operation: str) -> SignatureName:
    """A signature of one small tensor."""
    return SignatureName(operation, "sum", ((4,),), ("float32",), "cpu", 1)


class SimulatedRank:
    """Writes what a rank would write. Times are nanoseconds of any clock that the test uses throughout."""

    def __init__(
        self,
        directory: Path,
        rank: int = 0,
        world_size: int = 4,
        run_id: int = RUN_ID,
        state: RunIdState = RunIdState.AGREED,
        capacity: int = 1024,
    ) -> None:
        self.writer = TapeWriter(directory, identify(rank, rank, world_size, capacity))
        self.writer.set_run_id(run_id, state)
        self.reader = TapeReader.of_writer(self.writer)

    def begin(
        self,
        operation: str = "all_reduce",
        group: GroupName | None = WORLD,
        *,
        at: int = 0,
        sequence: int = 1,
        message_bytes: int = 16,
        flags: int = 0,
        kind: RecordKind = RecordKind.OPERATION,
        thread: int = 1,
    ) -> int:
        """Enter an operation; returns its number."""
        return self.writer.begin(
            at, 0, sequence, message_bytes,
            self.writer.names.intern(group) if group else 0,
            self.writer.names.intern(signature(operation)) if operation else 0,
            0, 0, -1, 0, thread, kind, flags,
        )  # fmt: skip

    def mark(self, number: int, word: Word, elapsed_ns: int) -> None:
        """Mark that a call returned, or that a wait began or returned, a given time after the operation was entered."""
        self.writer.mark(number, word, elapsed_ns, How.CALL)

    def run(
        self,
        operation: str = "all_reduce",
        group: GroupName | None = WORLD,
        *,
        at: int = 0,
        lasts: int = SECOND,
        how: How = How.CALL,
        sequence: int = 1,
        message_bytes: int = 16,
        flags: int = 0,
    ) -> None:
        """Enter an operation and end it."""
        number = self.begin(operation, group, at=at, sequence=sequence, message_bytes=message_bytes, flags=flags)
        self.writer.complete(number, at, at + lasts, how)
