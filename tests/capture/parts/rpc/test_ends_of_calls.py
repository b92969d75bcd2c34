"""Ends of remote calls that the rank thread finds by polling their futures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc
from torch.distributed.rpc.internal import RPCExecMode
from torch.futures import Future

from otel_torchdist.capture.parts.rpc.caller import CallerSide
from otel_torchdist.capture.parts.rpc.calls import Serving
from otel_torchdist.capture.parts.rpc.torch_rpc import TorchRpc
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import How
from tests.support.tapes.own_tape import OwnTape

SYNC, ASYNC = RPCExecMode.SYNC, RPCExecMode.ASYNC


def add(a: int, b: int) -> int:
    """A function that is called remotely."""
    return a + b


class Calling(OwnTape):
    """A worker whose calls are recorded. The test answers them."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.caller = CallerSide(lambda: None, lambda: None, Serving())
        self.caller.recorder = self.recorder
        self._announce = self.caller.make_announcement(lambda *_: None, TorchRpc())

    def call(self, mode: RPCExecMode) -> Future[Any]:
        """Send a call, as torch does."""
        future = Future[Any]()
        send = self.caller.make_invocation(lambda *_: future, is_pickled=True)
        self._announce(False, None, add, mode, rpc.WorkerInfo("other", 1))
        return send(None, b"")

    def ended(self) -> list[Activity]:
        """The calls that have ended since the last poll."""
        return self.reader.poll().activities_ended


@pytest.fixture
def calling(memory: Path) -> Iterator[Calling]:
    """A worker whose calls are recorded."""
    with contextlib.closing(Calling(memory)) as one:
        yield one


@pytest.mark.parametrize(("mode", "looks"), [(SYNC, 2), (ASYNC, 1)], ids=["sync", "async"])
def test_end_is_seen(calling: Calling, mode: RPCExecMode, looks: int) -> None:
    """A poll finds the end of a call. If a thread is waiting for it, the poll leaves it one round for that thread."""
    future = calling.call(mode)
    assert calling.caller.sweep(includes_old=False), "it is polled often"
    future.set_result(3)
    for _ in range(looks - 1):
        assert calling.caller.sweep(includes_old=False)
        assert calling.ended() == []
    assert not calling.caller.sweep(includes_old=False), "nothing is left that has to be polled often"
    assert [one.how for one in calling.ended()] == [How.POLL]


def test_failure_is_seen(calling: Calling) -> None:
    """A call whose function raised has failed with the type of the error, although nobody waits for it."""
    future = calling.call(ASYNC)
    future.set_exception(ZeroDivisionError())
    calling.caller.sweep(includes_old=False)
    [ended] = calling.ended()
    assert (ended.how, calling.reader.names.text(ended.failure)) == (How.FAILED, "ZeroDivisionError")


def test_dropped(calling: Calling) -> None:
    """A call whose future was dropped has no observable end."""
    calling.call(ASYNC)
    assert not calling.caller.sweep(includes_old=False)
    assert [one.how for one in calling.ended()] == [How.ABANDONED]
