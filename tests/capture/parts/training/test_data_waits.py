"""Recorded and counted data waits. Loaders behave as without recording."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from otel_torchdist import data_wait, mark_step
from otel_torchdist.capture.parts.step_parts import MAX_IN_STEP
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.tape.writer import TapeWriter
from tests.capture.parts.training.rank_here import Rank
from tests.support.interrupting import interrupted_behind


class Batches(Dataset[int]):
    """Samples that a function makes."""

    def __init__(self, make: Callable[[int], int]) -> None:
        self.make = make

    def __len__(self) -> int:
        """A few."""
        return 5

    def __getitem__(self, place: int) -> int:
        """Make one."""
        return self.make(place)


def pause(seconds: float) -> Callable[[int], int]:
    """A function that takes a while."""

    def make(place: int) -> int:
        time.sleep(seconds)
        return place

    return make


def loader(make: Callable[[int], int]) -> DataLoader[int]:
    """A loader without workers."""
    return DataLoader(Batches(make), batch_size=None)


def test_long_waits_are_recorded_and_short_ones_counted(rank: Rank) -> None:
    """A wait of 1 ms or longer is an activity with its dataset's class. All waits are counted."""
    list(loader(lambda place: place))
    assert rank.figures.batches == 5
    long = rank.ended(ActivityKind.DATA_WAIT)  # on a busy machine some may be
    assert all((one.completed_ns or 0) - one.entered_ns >= 1_000_000 for one in long)
    list(loader(pause(0.002)))
    found = rank.ended(ActivityKind.DATA_WAIT)
    assert [rank.reader.names.text(one.detail) for one in found] == ["Batches"] * 5
    for one in found:
        assert one.completed_ns is not None
        assert one.how is How.CALL
        assert one.completed_ns - one.entered_ns >= 2_000_000
    assert rank.figures.batches == 10
    assert rank.figures.data_wait_ns >= sum((one.completed_ns or 0) - one.entered_ns for one in found)


def test_records_of_a_step_are_bounded(rank: Rank) -> None:
    """A loop over a validation set in one step leaves a bounded number of records. All waits are counted."""
    for _ in range(MAX_IN_STEP):
        list(loader(pause(0.001)))
    assert len(rank.ended(ActivityKind.DATA_WAIT)) == MAX_IN_STEP
    assert rank.figures.batches == 5 * MAX_IN_STEP
    mark_step()
    list(loader(pause(0.001)))
    assert len(rank.ended(ActivityKind.DATA_WAIT)) == 5


@pytest.mark.parametrize(
    "error", [ValueError("a bad sample"), GeneratorExit(), KeyboardInterrupt(), SystemExit(3), TimeoutError("handler")]
)
def test_what_a_dataset_raises_passes_unchanged(rank: Rank, error: BaseException) -> None:
    """A dataset's exception passes as the same object with the same traceback. Its time counts, without a batch."""

    def make(place: int) -> int:
        if place == 2:
            time.sleep(0.002)
            raise error
        return place

    iterator = iter(loader(make))
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(type(error)) as caught:
        next(iterator)
    assert caught.value is error
    assert caught.traceback[-1].name == "make"
    assert rank.figures.batches == 2
    assert rank.figures.data_wait_ns >= 2_000_000
    assert next(iterator) == 3, "it goes on as it does without us"


def test_end_of_the_data(rank: Rank) -> None:
    """`StopIteration` ends a loop, and generators that delegate to a loader close it as before."""
    assert list(loader(lambda place: place)) == list(range(5))
    iterator = iter(loader(lambda place: place))
    for _ in range(5):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert next(iterator, "default") == "default"

    def delegating() -> Iterator[int]:
        yield from loader(lambda place: place)

    generator = delegating()
    assert next(generator) == 0
    generator.close()  # type: ignore[attr-defined]  # it is a generator
    assert rank.figures.batches == 5 + 5 + 1


class Endless(IterableDataset[int]):
    """A dataset that has more than it says."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_warnings_of_loaders_are_at_the_same_line(rank: Rank) -> None:
    """Torch's warnings still point to the program's line that requests the next batch."""

    def warned() -> list[str]:
        loader = DataLoader(Endless())
        assert len(loader) == 1
        batches = iter(loader)
        next(batches)
        with pytest.warns(UserWarning, match="2 samples have been fetched") as caught:
            next(batches)
        return [warning.filename for warning in caught]

    recorded = warned()
    assert rank.figures.batches == 2
    rank.parts.unhook()
    rank.patches.restore()
    assert recorded == warned()  # older versions of torch do not warn at that line, newer ones do


def test_loaders_of_other_libraries(rank: Rank) -> None:
    """Iterator classes of other libraries, such as torchdata's, are patched although they are defined later."""

    class Own(_SingleProcessDataLoaderIter):
        def _next_data(self) -> Any:
            return super()._next_data()

    kept = Own._next_data
    assert [*Own(loader(lambda place: place))] == [0, 1, 2, 3, 4]
    assert rank.figures.batches == 5
    rank.parts.unhook()
    rank.patches.restore()
    assert Own._next_data is not kept
    assert "__init_subclass__" not in _BaseDataLoaderIter.__dict__


def test_nested_loaders_count_once(rank: Rank) -> None:
    """With a loader in a dataset, only the outer waits and batches count."""

    class Outer(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from loader(pause(0.003))

    begun_ns = time.monotonic_ns()
    with data_wait():
        list(DataLoader(Outer(), batch_size=None))
    took_ns = time.monotonic_ns() - begun_ns
    assert rank.figures.batches == 1
    assert 15_000_000 <= rank.figures.data_wait_ns <= took_ns


def test_other_threads_do_not_count(rank: Rank) -> None:
    """Waits of prefetching threads do not count. Waits of the thread that ends steps do."""
    thread = threading.Thread(target=lambda: list(loader(pause(0.001))))
    thread.start()
    thread.join()
    assert rank.figures.batches == 0

    def train() -> None:
        mark_step()
        list(loader(lambda place: place))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert rank.figures.batches == 5


def test_data_wait_of_iterators_of_ones_own(rank: Rank) -> None:
    """A `data_wait` block counts as one batch, or as none if it raises. Without a tape it does nothing."""
    with data_wait():
        time.sleep(0.002)
    with pytest.raises(StopIteration), data_wait():
        next(iter(()))
    assert rank.figures.batches == 1
    assert len(rank.ended(ActivityKind.DATA_WAIT)) == 1
    rank.parts.ends(rank.recorder)
    with data_wait():
        pass
    assert rank.figures.batches == 1


def test_interrupted_record_leaves_nothing_open(rank: Rank) -> None:
    """A signal handler's exception between the record and its number passes, and the record ends."""
    with interrupted_behind(TapeWriter.begin_prepared):
        list(loader(pause(0.002)))
    rank.reader.poll()
    assert rank.reader.open_activities() == []


@pytest.mark.parametrize(
    ("owner", "missing", "said"),
    [
        (dataloader, "_BaseDataLoaderIter", "torch.utils.data.dataloader._BaseDataLoaderIter"),
        (
            dataloader._BaseDataLoaderIter,
            "_next_data",
            "torch.utils.data.dataloader._BaseDataLoaderIter._next_data",
        ),
    ],
)
def test_torch_without_the_class_of_iterators(
    memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    missing: str,
    said: str,
) -> None:
    """Without torch's class of iterators there is one warning. Backward passes and `data_wait` still count."""
    monkeypatch.delattr(owner, missing)
    with contextlib.closing(Rank(memory)) as rank:
        with data_wait():
            torch.ones(1, requires_grad=True).sum().backward()
        assert rank.figures.batches == 1
        assert rank.figures.backward_ns > 0
    assert caplog.messages == [f"this torch has no {said}: data waits are not recorded, except in data_wait()"]
