"""Fake tapes: real files with a real writer and reader in this process, written by a test instead of a training."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.kinds import ActivityKind, Flag, How, RecordKind, RunIdState
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import Word, prepare_activity
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.splits import pack_splits
from otel_torchdist.tape.status import TapeStatus
from otel_torchdist.tape.writer import TapeWriter

RUN_ID: Final = 0x1234ABCD_0000_4000_8000_000000000001
RUN: Final = "1234abcd"
SECOND: Final = 1_000_000_000
WALL_OFFSET_NS: Final = 1_700_000_000_000_000_000
WORLD: Final = GroupName("0", "default_pg", (0, 1, 2, 3), 0, "gloo", True)
PAIR: Final = GroupName("0", "default_pg", (0, 1), 0, "gloo", True)
TRAIN: Final = CallSiteName("train", "/home/ada/train.py", 42)


def signature(operation: str, elements: int = 4) -> SignatureName:
    """A signature of one small tensor."""
    return SignatureName(operation, "sum", ((elements,),), ("float32",), "cpu", 1)


class FakeTape:
    """The tape of a rank. Times are nanoseconds of any clock that the test uses throughout."""

    def __init__(
        self,
        directory: Path,
        rank: int = 0,
        world_size: int = 4,
        run_id: int = RUN_ID,
        state: RunIdState = RunIdState.AGREED,
        capacity: int = 1024,
        **identity: Any,
    ) -> None:
        """Create the tape.

        Args:
            directory: Its job directory.
            rank: The rank that writes it.
            world_size: How many ranks there are.
            run_id: The id of its run.
            state: How sure the rank is of that; `NONE` if it does not know its run.
            capacity: Records in the ring.
            **identity: Changes to the tape's identity.
        """
        self.writer = TapeWriter(directory, dataclasses.replace(identify(rank, rank, world_size, capacity), **identity))
        if state is not RunIdState.NONE:
            self.writer.set_run_id(run_id, state)
        self.reader = TapeReader.of_writer(self.writer)

    def begin(
        self,
        operation: str = "all_reduce",
        group: GroupName | None = WORLD,
        *,
        at: int = 0,
        sequence: int = 1,
        elements: int = 4,
        message_bytes: int = 16,
        flags: int = 0,
        kind: RecordKind = RecordKind.OPERATION,
        thread: int = 1,
        peer: int = -1,
        tag: int = 0,
        call_site: CallSiteName | None = None,
        label: str = "",
        phase: int = 0,
        parts: Sequence[int] = (),
        received: int = 0,
    ) -> int:
        """Enter an operation, an uneven one if it is given the bytes that members get; returns its number."""
        names = self.writer.names
        if parts:
            self.writer.write_splits(pack_splits(at, thread, parts, 1, received))
            flags |= Flag.UNEVEN
        return self.writer.begin(
            entered_ns=at,
            step=0,
            sequence=sequence,
            message_bytes=message_bytes,
            group=names.intern(group) if group else 0,
            signature=names.intern(signature(operation, elements)) if operation else 0,
            call_site=names.intern(call_site) if call_site else 0,
            label=names.intern(label) if label else 0,
            peer=peer,
            tag=tag,
            thread=thread,
            kind=kind,
            flags=flags,
            phase=phase,
        )

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
        call_site: CallSiteName | None = None,
    ) -> None:
        """Enter an operation and end it."""
        number = self.begin(
            operation, group, at=at, sequence=sequence, message_bytes=message_bytes, flags=flags, call_site=call_site
        )
        self.writer.complete(number, at, at + lasts, how)

    def die(self) -> None:
        """Give a last sign of life, and die without a final record."""
        self.writer.beat()
        self.close()

    def close(self) -> None:
        """Close its files."""
        self.reader.close()
        self.writer.close()


class FollowedTape:
    """The tape of one of two ranks, and what a follower makes of it.

    Attributes:
        writer: The tape's writer.
        reader: A reader over the writer's own mapping.
        follower: What the rank does, as of the last poll.
    """

    def __init__(self, directory: Path, rank: int, capacity: int = 64, run: int = RUN_ID) -> None:
        state = RunIdState.AGREED if run else RunIdState.NONE
        self._tape = FakeTape(directory, rank, 2, run, state, capacity)
        self.writer = self._tape.writer
        self.follow()

    def follow(self) -> None:
        """Start reading anew, as a process does that starts later."""
        self.reader = TapeReader.of_writer(self.writer)
        self.follower = TapeFollower(self.reader)

    def enter(
        self,
        sequence: int,
        at_ns: int = SECOND,
        group: GroupName = PAIR,
        name: str = "all_reduce",
        flags: int = 0,
        peer: int = -1,
        tag: int = 0,
        kind: RecordKind = RecordKind.OPERATION,
    ) -> int:
        """Enter an operation; returns its number."""
        return self._tape.begin(
            name, group, at=at_ns, sequence=sequence, flags=int(flags), kind=kind, thread=7, peer=peer, tag=tag,
            call_site=TRAIN, label="DDP",
        )  # fmt: skip

    def run(self, sequence: int, group: GroupName = PAIR, how: How = How.WAIT, failure: str = "") -> None:
        """Enter an operation and end it."""
        number = self.enter(sequence, group=group)
        if how is not How.FAILED:
            self.writer.mark(number, Word.RETURNED, 10, How.CALL)
        identity = self.writer.names.intern(failure) if failure else 0
        self.writer.complete(number, SECOND, 2 * SECOND, how, identity)

    def poll(self) -> None:
        """What a reader does before each check."""
        self.follower.observe(self.reader.poll())

    def view(self, now_ns: int = 20 * SECOND) -> RankView:
        """A snapshot after a poll."""
        self.poll()
        view = self.follower.view(now_ns)
        assert view is not None
        return view

    def close(self) -> None:
        """Close the tape."""
        self.writer.close()


class ClockedTape:
    """The tape of a rank on a clock that the test sets.

    Attributes:
        now_ns: Monotonic time; begins at 1,000 s, when the tape is created.
        step: The current step.
        wall_offset_ns: Wall clock minus monotonic clock.
        numbers: Every operation that has been entered.
        activities: When each activity began, by its number.
        writer: The tape's writer.
        reader: A reader over the writer's own mapping.
    """

    def __init__(
        self, directory: Path, rank: int = 2, world_size: int = 4, capacity: int = 4096, synchronized: bool = False
    ) -> None:
        self.now_ns = 1_000 * SECOND
        self.step = 0
        self.wall_offset_ns = WALL_OFFSET_NS
        tape = FakeTape(
            directory, rank, world_size, state=RunIdState.NONE, capacity=capacity,
            monotonic_ns=self.now_ns, realtime_ns=self.now_ns + WALL_OFFSET_NS, host="node-1",
            synchronized=synchronized,
        )  # fmt: skip
        self.writer, self.reader = tape.writer, tape.reader
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

    def agree(self, state: RunIdState = RunIdState.AGREED, run_id: int = RUN_ID) -> None:
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
        phase: int = 0,
        parts: Sequence[int] = (),
        received: int = 0,
        call_site: int | None = None,
    ) -> int:
        """Enter an operation, an uneven one if it is given the bytes that members get; returns its number."""
        self._sequence += 1
        if parts:
            self.writer.write_splits(pack_splits(self.now_ns, 7, parts, 1, received))
            flags |= Flag.UNEVEN
        group = self.group if group is None else group
        signature = self.signature if signature is None else signature
        call_site = self.call_site if call_site is None else call_site
        ids = group, signature, call_site, self.label
        number = self.writer.begin(
            self.now_ns, self.step, self._sequence, 32_768, *ids, peer, tag, 7, kind, flags, phase
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

    def operation(self, seconds: float = 0.01, flags: Flag | int = 0, how: How = How.CALL, **more: Any) -> int:
        """Write an operation from beginning to end; see `enter` for `more`."""
        number = self.enter(int(flags), **more)
        self.pass_s(seconds)
        self.end(number, how)
        return number

    def begin_activity(
        self,
        detail: str = "",
        kind: ActivityKind = ActivityKind.OPTIMIZER_STEP,
        parent: int = 0,
        thread: int = 7,
        message_bytes: int = 0,
    ) -> int:
        """Begin an activity, usually the step of an optimizer; returns its number."""
        name = self.writer.names.intern(detail) if detail else 0
        prepared = prepare_activity(kind, name, thread, message_bytes)
        number = self.writer.begin_prepared(self.now_ns, self.step, parent, prepared)
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
