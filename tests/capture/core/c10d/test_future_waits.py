"""Waits for futures are published on the tape while they last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from otel_torchdist.capture.core.c10d.waits import FutureWaits
from tests.support.tapes.own_tape import OwnTape
from tests.support.waiting import until


class Rank(OwnTape):
    """This process, whose waits for futures are published on a tape."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.waits = FutureWaits()
        self.waits.hook(self.patches)
        self.waits.recorder = self.recorder


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    """A rank in this process."""
    rank = Rank(memory)
    yield rank
    rank.close()


def test_wait_that_lasts(rank: Rank) -> None:
    """A wait shows from its start to its end, with its thread. It returns the future's result."""
    future: Any = torch.futures.Future()
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.append(future.wait()))
    waiting.start()
    until(lambda: rank.reader.status().future_since_ns > 0, 30)
    thread = rank.reader.status().future_thread
    future.set_result(7)
    waiting.join()
    assert (thread, results) == (waiting.native_id, [7])
    assert rank.reader.status().future_since_ns == 0


def test_what_a_future_raises_passes_unchanged(rank: Rank) -> None:
    """A future's exception passes unchanged. A future that is already done is no wait."""
    future: Any = torch.futures.Future()
    future.set_exception(ZeroDivisionError("of the callback"))
    with pytest.raises(ZeroDivisionError, match="of the callback"):
        future.wait()
    assert rank.reader.status().future_since_ns == 0
