"""A real tape of one rank on a clock that the test sets, with a reader in the same process."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

from otel_torchdist.tape.activities import prepare_activity
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import ActivityKind, Flag, How, RecordKind, RunIdState, Word
from otel_torchdist.tape.reader import TapeReader
from otel_torchdist.tape.records import CallSiteName, GroupName, SignatureName, TapeStatus
from otel_torchdist.tape.writer import TapeWriter

RUN = 0x0123456789ABCDEF0123456789ABCDEF
WALL_OFFSET_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


class RankTape:
    """Writes operations at times chosen by the test.

    Attributes:
        now_ns: Monotonic time; begins at 1,000 s, when the tape is created.
        step: The current step.
        wall_offset_ns: Wall clock minus monotonic clock.
        numbers: Every operation that has been entered.
        activities: When each activity began, by its number.
        writer: The tape's writer.
        reader: A reader over the writer's own mapping.
    """

    def __init__(self, directory: Path, rank: int = 2, world_size: int = 4, capacity: int = 4096) -> None:
        self.now_ns = 1_000 * SECOND
        self.step = 0
        self.wall_offset_ns = WALL_OFFSET_NS
        identity = dataclasses.replace(
            identify(rank, rank, world_size, capacity),
            monotonic_ns=self.now_ns,
            realtime_ns=self.now_ns + WALL_OFFSET_NS,
            host="node-1",
        )
        self.writer = TapeWriter(directory, identity)
        self.reader = TapeReader.of_writer(self.writer)
        weakref.finalize(self, self.writer.close)
        names = self.writer.names
        self.group = names.intern(
            GroupName("0", "default_pg", tuple(range(world_size)), nth=0, backend="gloo", aligned=True)
        )
        self.signature = names.intern(SignatureName("all_reduce", "sum", ((64, 128), ()), ("float32",), "cpu", 2))
        self.call_site = names.intern(CallSiteName("train", "/home/user/train.py", 42))
        self.label = names.intern("DDP")
        self._sequence = 0
        self._entered: dict[int, int] = {}
        self.numbers: list[int] = []
        self.activities: dict[int, int] = {}

    def status(self) -> TapeStatus:
        """The tape's live words, with a pair of clocks chosen by the test."""
        realtime_ns = self.now_ns + self.wall_offset_ns
        return dataclasses.replace(self.reader.status(), monotonic_ns=self.now_ns, realtime_ns=realtime_ns)

    def agree(self, state: RunIdState = RunIdState.AGREED, run_id: int = RUN) -> None:
        """Publish the run's id."""
        self.writer.set_run_id(run_id, state)

    def pass_s(self, seconds: float) -> None:
        """Advance the clock."""
        self.now_ns += int(seconds * SECOND)

    def enter(
        self,
        flags: int = 0,
        kind: RecordKind = RecordKind.OPERATION,
        signature: int | None = None,
        peer: int = -1,
        tag: int = 0,
        group: int | None = None,
    ) -> int:
        """Enter an operation; returns its number."""
        self._sequence += 1
        number = self.writer.begin(
            entered_ns=self.now_ns,
            step=self.step,
            sequence=self._sequence,
            message_bytes=32_768,
            group=self.group if group is None else group,
            signature=self.signature if signature is None else signature,
            call_site=self.call_site,
            label=self.label,
            peer=peer,
            tag=tag,
            thread=7,
            kind=kind,
            flags=flags,
        )
        self._entered[number] = self.now_ns
        self.numbers.append(number)
        return number

    def mark(self, number: int, word: Word) -> None:
        """Mark an event of an operation now."""
        self.writer.mark(number, word, self.now_ns - self._entered[number], How.CALL)

    def end(self, number: int, how: How = How.CALL, failure: str = "") -> None:
        """End an operation now."""
        name = self.writer.names.intern(failure) if failure else 0
        entered_ns = self._entered.pop(number)
        self.now_ns = max(self.now_ns, entered_ns + 1)  # the tape cannot represent a shorter operation
        self.writer.complete(number, entered_ns, self.now_ns, how, name)

    def operation(self, seconds: float = 0.01, flags: Flag | int = 0, how: How = How.CALL) -> int:
        """Write an operation from beginning to end."""
        number = self.enter(int(flags))
        self.pass_s(seconds)
        self.end(number, how)
        return number

    def begin_activity(self, detail: str = "") -> int:
        """Begin the step of an optimizer; returns its number."""
        name = self.writer.names.intern(detail) if detail else 0
        prepared = prepare_activity(ActivityKind.OPTIMIZER_STEP, name, 7)
        number = self.writer.begin_prepared(self.now_ns, self.step, 0, prepared)
        self.activities[number] = self.now_ns
        return number

    def end_activity(self, number: int, how: How = How.CALL, failure: str = "") -> None:
        """End an activity now."""
        name = self.writer.names.intern(failure) if failure else 0
        self.now_ns = max(self.now_ns, self.activities[number] + 1)
        self.writer.complete(number, self.activities[number], self.now_ns, how, name)

    def activity(self, seconds: float = 0.01, detail: str = "") -> int:
        """Write an activity from beginning to end."""
        number = self.begin_activity(detail)
        self.pass_s(seconds)
        self.end_activity(number)
        return number

    def end_step(self) -> None:
        """End the step now."""
        self.writer.step_ended(self.step, self.now_ns, self._sequence)
        self.step += 1

    @property
    def open(self) -> list[int]:
        """Operations that have been entered and have not ended."""
        return list(self._entered)
