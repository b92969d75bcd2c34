"""Whatever is written in whatever order: readers get it as it was, once, or count it as lost."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from otel_torchdist.model.kinds import Blame, Flag, How, RecordKind, RunIdState
from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import MAX_NUMBER, REFUGE_SLOTS, Word, pack_failure
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.operations import Operation, StepMark
from tests.support.tapes.tapes import BEGIN_FIELDS, new_writer

_TIMES = {
    Word.RETURNED: "returned_ns",
    Word.WAIT_ENTERED: "wait_entered_ns",
    Word.WAIT_RETURNED: "wait_returned_ns",
    Word.STARTED: "started_ns",
}
_UINT32 = st.integers(0, 2**32 - 1)
_FAILURE = st.builds(pack_failure, st.integers(0, (1 << 24) - 1), st.sampled_from(Blame))
_INT32 = st.integers(-(2**31), 2**31 - 1)
_POSSIBLE = st.integers(0, MAX_NUMBER)
_OPERATIONS = st.builds(
    Operation,
    number=st.just(0),
    kind=st.sampled_from([RecordKind.OPERATION, RecordKind.RENDEZVOUS]),
    entered_ns=_POSSIBLE,
    step=_POSSIBLE,
    sequence=_POSSIBLE,
    message_bytes=_POSSIBLE,
    group=_UINT32,
    signature=_UINT32,
    call_site=_UINT32,
    label=st.integers(0, 2**16 - 1),
    piece=st.integers(0, 2**16 - 1),
    peer=_INT32,
    tag=_INT32,
    thread=st.integers(0, 2**12 - 1).map(lambda thread: thread << 20),
    flags=st.integers(0, 127).map(Flag),
    returned_ns=st.none(),
    wait_entered_ns=st.none(),
    wait_returned_ns=st.none(),
    started_ns=st.none(),
    completed_ns=st.none(),
    how=st.none(),
    failure=st.just(0),
)
_ELAPSED = st.integers(0, 2**40) | st.integers(-5, 2**50)
_INDEX = st.integers(0, 10**6)


@dataclass
class Truth:
    """What was really written about an operation, if there was a place for it."""

    entered: Operation
    times: dict[str, int] = field(default_factory=dict[str, int])
    times_at_end: dict[str, int] = field(default_factory=dict[str, int])
    end: tuple[int, How, int] | None = None
    late: bool = False
    kept: bool = True


class World:
    """The writer's tape as an unlimited reader would know it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.operations: dict[int, Truth] = {}
        self.steps: dict[int, StepMark] = {}
        self.open: list[int] = []
        self.refuge: set[int] = set()

    def record(self) -> int:
        """A record is written: its number. The operation in its slot moves to the refuge if it is open."""
        self.count += 1
        lapped = self.count - self.capacity
        if lapped in self.open:
            if len(self.refuge) < REFUGE_SLOTS:
                self.refuge.add(lapped)
            else:
                self.operations[lapped].kept = False
        return self.count

    def has_place(self, number: int) -> bool:
        """Whether words of an operation can still be stored."""
        return number > self.count - self.capacity or number in self.refuge


class Follower:
    """A reader, and everything that it has reported so far, compared with the truth."""

    def __init__(self, world: World, reader: TapeReader) -> None:
        self._world = world
        self._reader = reader
        self._entered: set[int] = set()
        self._ended: set[int] = set()
        self._steps: set[int] = set()
        self._outdated: set[int] = set()

    @property
    def lost(self) -> int:
        """The records that it reports as lost."""
        return self._reader.lost

    def poll(self, limit: int = 50_000) -> None:
        """Read, and check every field of each record."""
        batch = self._reader.poll(limit)
        for operation in batch.entered:
            assert operation.number not in self._entered
            self._entered.add(operation.number)
            assert operation == self._world.operations[operation.number].entered
        for operation in batch.ended:
            self._check_ended(operation)
        for step in batch.steps:
            assert step.number not in self._steps
            self._steps.add(step.number)
            assert step == self._world.steps[step.number]
        if limit >= 50_000:
            self._check_caught_up(batch)

    def _check_ended(self, operation: Operation) -> None:
        truth = self._world.operations[operation.number]
        assert operation.number in self._entered
        assert operation.number not in self._ended
        self._ended.add(operation.number)
        failure = pack_failure(operation.failure, operation.blame)
        assert (operation.completed_ns, operation.how, failure) == truth.end
        self._check_times(operation, truth, truth.times_at_end if truth.kept else {})

    def _check_times(self, operation: Operation, truth: Truth, needed: dict[str, int]) -> None:
        for name in _TIMES.values():
            value = getattr(operation, name)
            assert value is None or value == self._expected_ns(operation, name, truth.times[name])
            assert value is not None or name not in needed

    @staticmethod
    def _expected_ns(operation: Operation, name: str, written_ns: int) -> int:
        if name == "wait_entered_ns" and operation.completed_ns is not None:
            return min(written_ns, operation.completed_ns)
        return written_ns

    def _check_caught_up(self, batch: Batch) -> None:
        still_open = self._reader.open_operations()
        outdated: set[int] = set()
        for operation in still_open:
            truth = self._world.operations[operation.number]
            assert operation.number in self._entered - self._ended
            assert operation.how is None
            self._check_times(operation, truth, truth.times if truth.end is None and truth.kept else {})
            if truth.end is not None or not truth.kept:
                outdated.add(operation.number)
        assert not outdated & self._outdated, "an end that cannot be found is given up at the second look"
        self._outdated = outdated
        late = sum(self._world.operations[number].late for number in self._ended)
        delivered = len(self._steps) + len(self._ended) + len(still_open) + late
        assert self.lost == self._world.count - delivered
        assert batch.lost >= 0


class Following(RuleBasedStateMachine):
    """Nothing is delivered twice or with a wrong field, and records that are not delivered are counted exactly.

    Besides readers that start late and poll seldom, one polls after every store: it loses nothing, unless more
    operations are open than the refuge has room for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        self._followers: list[Follower] = []
        self._threads = itertools.count(1)

    @initialize(capacity=st.integers(8, 24))
    def create(self, capacity: int) -> None:
        """A tape of some size, followed from its first record."""
        self._writer = new_writer(self._directory, capacity)
        self._world = World(capacity)
        self._eager = Follower(self._world, TapeReader.of_writer(self._writer))
        self._status = TapeReader.of_writer(self._writer)
        self._run_id, self._run_id_state, self._step = 0, RunIdState.NONE, 0

    def teardown(self) -> None:
        """Every reader catches up once more."""
        try:
            for follower in self._followers:
                follower.poll()
                follower.poll()
        finally:
            self._writer.close()
            shutil.rmtree(self._directory)

    def _begin(self, operation: Operation) -> int:
        # Each on a thread of its own: when a thread goes on, its earlier calls are taken as over.
        operation = msgspec.structs.replace(operation, thread=operation.thread ^ next(self._threads))
        number = self._writer.begin(*(getattr(operation, name) for name in BEGIN_FIELDS))
        assert number == self._world.record()
        self._world.operations[number] = Truth(msgspec.structs.replace(operation, number=number))
        self._world.open.append(number)
        self._eager.poll()
        return number

    def _mark(self, number: int, word: Word, elapsed: int) -> None:
        truth = self._world.operations[number]
        if _TIMES[word] in truth.times:
            return
        self._writer.mark(number, word, elapsed, How.CALL)
        if self._world.has_place(number):
            truth.times[_TIMES[word]] = truth.entered.entered_ns + max(0, min(elapsed, layout.MAX_DURATION_NS))
        self._eager.poll()

    def _complete(self, number: int, elapsed: int, how: How, failure: int) -> None:
        truth = self._world.operations[number]
        entered = truth.entered.entered_ns
        late = number <= self._world.count - self._world.capacity
        self._world.open.remove(number)
        took = max(elapsed, 1) if late else max(1, min(elapsed, layout.MAX_DURATION_NS))
        truth.end, truth.late, truth.times_at_end = (entered + took, how, failure), late, dict(truth.times)
        assert self._writer.complete(number, entered, entered + elapsed, how, failure)
        if late:
            self._world.record()
            self._world.refuge.discard(number)
        assert not self._writer.complete(number, entered, entered + 1, How.CALL)
        self._eager.poll()

    def _any_open(self, index: int) -> int:
        return self._world.open[index % len(self._world.open)]

    @rule(operation=_OPERATIONS)
    def begin(self, operation: Operation) -> None:
        """Enter an operation."""
        self._begin(operation)

    @rule(operation=_OPERATIONS, many=st.integers(1, REFUGE_SLOTS + 16))
    def begin_many(self, operation: Operation, many: int) -> None:
        """Enter more operations than the refuge can hold."""
        for _ in range(many):
            self._begin(operation)

    @rule(operation=_OPERATIONS, many=st.integers(1, 60), elapsed=_ELAPSED)
    def pass_by(self, operation: Operation, many: int, elapsed: int) -> None:
        """Begin and end operations while others stay open."""
        for _ in range(many):
            self._complete(self._begin(operation), elapsed, How.WAIT, 0)

    @precondition(lambda self: self._world.operations)
    @rule(index=_INDEX, word=st.sampled_from(list(_TIMES)), elapsed=_ELAPSED)
    def mark(self, index: int, word: Word, elapsed: int) -> None:
        """Mark an operation, open or not."""
        numbers = list(self._world.operations)
        self._mark(numbers[index % len(numbers)], word, elapsed)

    @precondition(lambda self: self._world.open)
    @rule(index=_INDEX, word=st.sampled_from(list(_TIMES)), elapsed=_ELAPSED)
    def mark_open(self, index: int, word: Word, elapsed: int) -> None:
        """Mark an open operation."""
        self._mark(self._any_open(index), word, elapsed)

    @precondition(lambda self: self._world.open)
    @rule(index=_INDEX, elapsed=_ELAPSED, how=st.sampled_from(How), failure=st.just(0) | _FAILURE)
    def complete(self, index: int, elapsed: int, how: How, failure: int) -> None:
        """End an open operation, in the ring or late."""
        self._complete(self._any_open(index), elapsed, how, failure)

    @precondition(lambda self: self._world.open)
    @rule(elapsed=_ELAPSED)
    def complete_all(self, elapsed: int) -> None:
        """End all open operations."""
        for number in list(self._world.open):
            self._complete(number, elapsed, How.POLL, 0)

    @rule(step=st.integers(0, 2**52 - 2), ended_ns=_POSSIBLE, sequence=_POSSIBLE)
    def end_step(self, step: int, ended_ns: int, sequence: int) -> None:
        """End a step."""
        self._writer.step_ended(step, ended_ns, sequence)
        number = self._world.record()
        self._world.steps[number] = StepMark(number, ended_ns, step, sequence)
        self._step = step + 1
        self._eager.poll()

    @rule(run_id=st.integers(0, 2**128 - 1), state=st.sampled_from(RunIdState))
    def agree(self, run_id: int, state: RunIdState) -> None:
        """The run's id becomes known or changes."""
        self._writer.set_run_id(run_id, state)
        self._run_id, self._run_id_state = run_id, state

    @precondition(lambda self: len(self._followers) < 3)
    @rule()
    def attach(self) -> None:
        """Attach one more reader."""
        self._followers.append(Follower(self._world, TapeReader.of_writer(self._writer)))

    @precondition(lambda self: self._followers)
    @rule(index=_INDEX, limit=st.integers(1, 30) | st.just(50_000))
    def poll(self, index: int, limit: int) -> None:
        """Poll a reader, to the end or not."""
        self._followers[index % len(self._followers)].poll(limit)

    @invariant()
    def status_is_true(self) -> None:
        """The live words show what was written last, and a reader that keeps up loses nothing."""
        status = self._status.status()
        assert (status.run_id, status.run_id_state, status.step) == (self._run_id, self._run_id_state, self._step)
        overflowed = sum(not truth.kept for truth in self._world.operations.values())
        assert status.records_dropped == overflowed
        assert (self._eager.lost > 0) <= (overflowed > 0)
        assert sorted(self._writer.open_numbers()) == sorted(self._world.open)


Following.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestFollowing = Following.TestCase
