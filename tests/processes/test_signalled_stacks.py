"""Stacks by signal in the snapshot of a rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from otel_torchdist.model.stacks import Stacks
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.world.following.follower import TapeFollower
from tests.processes.conftest import RankProcess, needs_signals_for_threads
from tests.support.waiting import until


class Followed:
    """A rank whose GIL is held, and its follower."""

    def __init__(self, rank: RankProcess) -> None:
        self.rank = rank
        self.thread = int(rank.send("enter_elsewhere"))
        self.reader = TapeReader(rank.tape.path)
        self.follower = TapeFollower(self.reader)
        self.follower.observe(self.reader.poll())

    def stacks(self) -> Stacks:
        """The rank's stacks in its snapshot."""
        view = self.follower.view(time.monotonic_ns())
        assert view is not None
        assert view.stacks is not None
        return view.stacks


@pytest.fixture
def followed(start: Callable[..., RankProcess]) -> Iterator[Followed]:
    """A rank in an operation, in another thread than the main one."""
    one = Followed(start())
    yield one
    one.reader.close()


@needs_signals_for_threads
def test_thread_of_the_operation(followed: Followed) -> None:
    """The stack is that of the thread that is in the operation, and is marked as taken by a signal."""
    followed.follower.ask_for_stacks(1)
    assert followed.stacks() == Stacks(1, None)
    followed.follower.ask_by_signal()
    [stack] = until(lambda: followed.stacks().threads)
    assert followed.stacks() == Stacks(1, (stack,), by_signal=True)
    assert stack.thread == followed.thread
    assert "enter" in [frame.function for frame in stack.frames]


def test_next_request(followed: Followed) -> None:
    """A stack that answered one request does not answer the next."""
    followed.follower.ask_for_stacks(1)
    followed.follower.ask_by_signal()
    assert until(lambda: followed.stacks().threads)
    followed.follower.ask_for_stacks(2)
    assert (followed.stacks().asked_ns, followed.stacks().threads) == (2, None)
    followed.follower.ask_by_signal()
    assert until(lambda: followed.stacks().threads)
    assert followed.stacks().by_signal
