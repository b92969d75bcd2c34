"""Groups shared by two threads, and cases that are no sharing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.judge.world.occupations import MIN_OCCURRENCES
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.names import GroupName
from otel_torchdist.model.rank_state.occupations import SharedGroup
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.fake_tape import PAIR, SECOND, TRAIN, FakeTape

NCCL = GroupName("0", "default_pg", (0, 1), 0, "nccl", True)
ALONE = GroupName("0", "default_pg", (0,), 0, "gloo", True)


class Rank:
    """A rank whose threads call collectives."""

    def __init__(self, directory: Path) -> None:
        self.tape = FakeTape(directory, world_size=2)
        self.follower = TapeFollower(TapeReader.of_writer(self.tape.writer))
        self._sequence = 0

    def call(
        self, thread: int, begin_s: float, end_s: float, group: GroupName = PAIR, flags: int = 0, how: How = How.WAIT
    ) -> None:
        """Call a collective."""
        self._sequence += 1
        at_ns, end_ns = (round(seconds * SECOND) for seconds in (begin_s, end_s))
        number = self.tape.begin(
            "all_reduce", group, at=at_ns, sequence=self._sequence, thread=thread, flags=flags, call_site=TRAIN
        )
        self.tape.writer.complete(number, at_ns, end_ns, how)

    def shared(self) -> tuple[SharedGroup, ...]:
        """Return the shared groups."""
        self.follower.observe(self.follower.reader.poll())
        view = self.follower.view(100 * SECOND)
        assert view is not None
        return view.shared_groups


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    """Return a rank without calls."""
    rank = Rank(memory)
    yield rank
    rank.tape.writer.close()


def test_at_the_same_time(rank: Rank) -> None:
    """Two threads overlap twice in collectives of one group: shared."""
    for begin_s in (1.0, 5.0):
        rank.call(7, begin_s, begin_s + 2)
        rank.call(8, begin_s + 1, begin_s + 3)
    [found] = rank.shared()
    assert found == SharedGroup(PAIR.key, ("all_reduce", "all_reduce"), (TRAIN, TRAIN), 0, times=MIN_OCCURRENCES)


def test_once_is_not_enough(rank: Rank) -> None:
    """A single overlap may be a thread that ends while another joins it. It is kept as evidence for a stall."""
    rank.call(7, 1.0, 3.0)
    rank.call(8, 2.0, 4.0)
    [found] = rank.shared()
    assert found.times < MIN_OCCURRENCES


@pytest.mark.parametrize("backend", ["cpu:gloo", "cpu:gloo,cuda:nccl"])
def test_backends_of_several_devices(rank: Rank, backend: str) -> None:
    """A group whose backend is given for each type of device pairs calls on the CPU as gloo does."""
    for begin_s in (1.0, 5.0):
        rank.call(7, begin_s, begin_s + 2, dataclasses.replace(PAIR, backend=backend))
        rank.call(8, begin_s + 1, begin_s + 3, dataclasses.replace(PAIR, backend=backend))
    assert [found.times for found in rank.shared()] == [MIN_OCCURRENCES]


def test_call_that_raised(rank: Rank) -> None:
    """A call that raised had blocked its thread until then."""
    rank.call(7, 1.0, 3.0)
    rank.call(8, 2.0, 4.0, how=How.FAILED)
    assert [found.times for found in rank.shared()] == [1]


def test_one_after_the_other(rank: Rank) -> None:
    """Threads that take turns, such as those of a pool, keep the order."""
    for nth in range(10):
        rank.call(7 + nth % 2, nth, nth + 0.9)
    assert rank.shared() == ()


@pytest.mark.parametrize("flags", [Flag.ASYNC, Flag.COALESCED, Flag.ON_DEVICE, Flag.POINT_TO_POINT])
def test_what_does_not_block(rank: Rank, flags: Flag) -> None:
    """Operations that only overlap after their calls have returned, as DDP's do, were called in order."""
    for begin_s in (1.0, 5.0, 9.0):
        rank.call(7, begin_s, begin_s + 2, flags=int(flags))
        rank.call(8, begin_s + 1, begin_s + 3)
    assert rank.shared() == ()


@pytest.mark.parametrize("group", [NCCL, ALONE])
def test_other_groups(rank: Rank, group: GroupName) -> None:
    """Other backends order calls by themselves, and a group of one rank pairs nothing."""
    for begin_s in (1.0, 5.0, 9.0):
        rank.call(7, begin_s, begin_s + 2, group)
        rank.call(8, begin_s + 1, begin_s + 3, group)
    assert rank.shared() == ()


def test_groups_of_their_own(rank: Rank) -> None:
    """A thread that saves in another group shares nothing."""
    own = GroupName("1", "checkpoint", (0, 1), 1, "gloo", True)
    for begin_s in (1.0, 5.0, 9.0):
        rank.call(7, begin_s, begin_s + 2)
        rank.call(8, begin_s + 1, begin_s + 3, own)
    assert rank.shared() == ()
