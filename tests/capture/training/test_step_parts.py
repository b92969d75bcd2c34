"""Data waits, backward passes and throughput of a rank: what is counted and recorded, and what passes unchanged."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from otel_torchdist import data_wait, mark_step
from otel_torchdist.capture.training import throughput
from otel_torchdist.capture.training.gradient_sync import GradientSync
from otel_torchdist.capture.training.step_parts import MAX_IN_STEP, StepParts
from otel_torchdist.capture.training.steps import Steps
from otel_torchdist.tape.figures import FigureWord, StepFigures, read_figures
from otel_torchdist.tape.layout import ActivityKind, How
from otel_torchdist.tape.records.activities import Activity
from tests.support.launch.jobs import Jobs
from tests.support.tapes.own_tape import OwnTape


def test_shares_are_those_of_a_run_that_is_timed_by_hand(jobs: Jobs) -> None:
    """Of a DDP job with workers of loaders: each part within two points, on a rank that waits for data and one not."""
    for done in jobs.run("parts", 2).ranks:
        said = done.line()
        assert said["counted"] == pytest.approx(said["by_hand"], abs=0.02)
        assert said["numbers"] == [2 * 24, 24, 24, 4 * 24, 28 * 24]
        assert said["flops"] == pytest.approx(24 * 3e18)
        sync_ns, hidden_ns = said["sync"]
        assert said["syncs"] > 0
        assert 0 <= hidden_ns <= sync_ns
        assert sync_ns > 0


class Rank(OwnTape):
    """Parts of this process's steps, recorded on a tape of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.parts = StepParts()
        self.steps = Steps(lambda: 0, lambda recorder: self.parts.trains_here())
        self.steps.hook(self.patches)
        self.parts.hook(self.patches)
        self.steps.recorder = self.recorder
        self.parts.write_to(self.recorder)

    @property
    def figures(self) -> StepFigures:
        """What is counted."""
        return read_figures(self.reader.words)

    def ended(self, kind: ActivityKind) -> list[Activity]:
        """What has ended since the last poll."""
        return [one for one in self.reader.poll().activities_ended if one.kind is kind]

    def unhook(self) -> None:
        """Undo what patches do not restore."""
        self.parts.unhook()
        self.steps.unhook()


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    """Parts of this process's steps are recorded."""
    with contextlib.closing(Rank(memory)) as rank:
        yield rank


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
    """A wait of a millisecond or longer becomes an activity with its dataset's class; all of them are counted."""
    list(loader(lambda place: place))
    assert rank.figures.batches == 5
    assert rank.ended(ActivityKind.DATA_WAIT) == []
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
    """A loop over a validation set within one step leaves a bounded number of records, and all is counted."""
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
    """It is the same object, its traceback ends where it was raised, and the time counts without a batch."""

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
    """`StopIteration` ends a loop, and generators that delegate to a loader close it as ever."""
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
    """What torch warns of is still at the line of the program that asks for the next batch."""
    loader = DataLoader(Endless())
    assert len(loader) == 1
    batches = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match="2 samples have been fetched") as caught:
        next(batches)
    assert [warning.filename for warning in caught] == [__file__]
    assert rank.figures.batches == 2


def test_loaders_of_other_libraries(rank: Rank) -> None:
    """An iterator of one's own, as torchdata has them, is followed although its class is made later; undone with us."""

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
    """A dataset that reads from another loader: the time of the outer wait, and its batches."""

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
    """Threads that fetch ahead do not hold up the step; the thread that ends steps does, whichever that is."""
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
    """A block counts as one batch, one that raises as none; what it raises passes; without a tape nothing happens."""
    with data_wait():
        time.sleep(0.002)
    with pytest.raises(StopIteration), data_wait():
        next(iter(()))
    assert rank.figures.batches == 1
    assert len(rank.ended(ActivityKind.DATA_WAIT)) == 1
    rank.parts.write_to(None)
    with data_wait():
        pass
    assert rank.figures.batches == 1


def test_backward_passes(rank: Rank) -> None:
    """By the method and by the function, the outermost of nested ones; a long one is an activity."""
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    torch.autograd.backward([weight.sum()])
    assert rank.figures.backward_passes == 2
    rank.ended(ActivityKind.BACKWARD)
    layer = torch.nn.Linear(3, 3)

    def forward(given: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return layer(given)

    recomputed: Any = torch.utils.checkpoint.checkpoint(forward, weight, use_reentrant=True)  # type: ignore[attr-defined]
    recomputed.sum().backward()
    assert rank.figures.backward_passes == 3
    [found] = rank.ended(ActivityKind.BACKWARD)
    assert found.how is How.CALL
    assert rank.figures.backward_ns >= (found.completed_ns or 0) - found.entered_ns >= 2_000_000


def test_what_a_backward_pass_raises_passes_unchanged(rank: Rank) -> None:
    """A hook's error, and torch's own where there is nothing to differentiate; the activity failed."""
    weight = torch.ones(3, requires_grad=True)
    raised = ZeroDivisionError("in a hook")

    def hook(gradient: torch.Tensor) -> None:
        raise raised

    weight.register_hook(hook)
    with pytest.raises(ZeroDivisionError) as caught:
        weight.sum().backward()
    assert caught.value is raised
    [found] = rank.ended(ActivityKind.BACKWARD)
    assert (found.how, rank.reader.names.text(found.failure)) == (How.FAILED, "ZeroDivisionError")
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(3).sum().backward()
    assert rank.reader.open_activities() == []


def test_gradients_are_those_without_us(rank: Rank) -> None:
    """Bit by bit, with arguments of all kinds."""

    def gradients() -> list[list[float]]:
        torch.manual_seed(1)
        weight = torch.randn(8, requires_grad=True)
        other = torch.randn(8, requires_grad=True)
        (weight * other).sin().backward(torch.ones(8), retain_graph=True, inputs=[weight])
        torch.autograd.backward(((weight * other).cos(),), grad_tensors=(torch.ones(8),), create_graph=False)
        assert weight.grad is not None
        assert other.grad is not None
        return [weight.grad.tolist(), other.grad.tolist()]

    ours = gradients()
    rank.patches.restore()
    assert gradients() == ours
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_optimizers_in_backward_hooks_are_part_of_it(rank: Rank) -> None:
    """Their time is that of the backward pass; steps after it have a time of their own."""
    weight = torch.nn.Parameter(torch.ones(3))
    one = torch.optim.SGD([weight], lr=0.1)
    weight.register_post_accumulate_grad_hook(lambda _: one.step())
    weight.sum().backward()
    assert rank.figures.optimizer_steps == 0
    one.step()
    assert rank.figures.optimizer_steps == 1
    assert rank.figures.optimizer_ns > 0


def test_interrupted_record_leaves_nothing_open(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of a signal handler between a record and its number: the record ends, and the exception passes."""
    tape, begin = rank.recorder.tape, rank.recorder.tape.begin_prepared

    def begin_and_raise(*args: Any) -> int:
        begin(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tape, "begin_prepared", begin_and_raise)
        list(loader(pause(0.002)))
    rank.reader.poll()
    assert rank.reader.open_activities() == []


def test_amounts_given_to_mark_step(
    rank: Rank, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are counted, also after an overflow of integers; anything else is left out with one warning per name."""
    monkeypatch.setattr(throughput, "_warned_of", set[str]())
    mark_step(samples=8, tokens=8 * 512, flops=1e25)
    mark_step(samples=0.0, flops=1e25)
    with caplog.at_level(logging.WARNING, "otel_torchdist"):
        for bad in (-1, math.nan, math.inf, "8", torch.tensor(8)):
            mark_step(samples=bad)  # type: ignore[arg-type]  # bad on purpose
        mark_step(tokens=-2)
    assert (rank.figures.samples, rank.figures.tokens) == (8, 4096)
    assert rank.figures.flops == pytest.approx(2e25)
    assert [record.getMessage() for record in caplog.records] == [
        "mark_step(samples=-1): not a finite number, at least 0: ignored",
        "mark_step(tokens=-2): not a finite number, at least 0: ignored",
    ]
    assert len(rank.reader.poll().steps) == 8


def test_damaged_figures(rank: Rank) -> None:
    """Words that are no number of floating-point operations count as none."""
    rank.reader.words[FigureWord.FLOPS] = 0x7FF8_0000_0000_0000
    assert rank.figures.flops == 0.0
    rank.reader.words[FigureWord.FLOPS] = 0xFFF0_0000_0000_0000
    assert rank.figures.flops == 0.0


@pytest.mark.parametrize(
    ("owner", "missing", "said"),
    [
        (dataloader, "_BaseDataLoaderIter", "_BaseDataLoaderIter"),
        (dataloader._BaseDataLoaderIter, "_next_data", "_BaseDataLoaderIter._next_data"),
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
    """One line says what is not known; backward passes, and waits that the program names, are counted as ever."""
    monkeypatch.delattr(owner, missing)
    with contextlib.closing(Rank(memory)) as rank:
        with data_wait():
            torch.ones(1, requires_grad=True).sum().backward()
        assert rank.figures.batches == 1
        assert rank.figures.backward_ns > 0
    assert caplog.messages == [f"this torch has no {said}: waits for data are not known, except those in data_wait()"]


def test_torch_without_what_ddp_begins_with(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what is not known, and the end of a step asks no model."""
    monkeypatch.delattr(DistributedDataParallel, "_ddp_init_helper")
    with contextlib.closing(Rank(memory)) as rank:
        timers = GradientSync()
        timers.hook(rank.patches)
        timers.step_ended(rank.recorder)
    assert caplog.messages == ["this torch has no DDP._ddp_init_helper: the time of gradient sync is not known"]
