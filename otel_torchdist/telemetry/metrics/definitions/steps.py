"""Steps of ranks and what their time goes into, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist.tape.figures import StepFigures
from otel_torchdist.telemetry.metrics.counts import WHOLE, CheckpointCounts
from otel_torchdist.telemetry.metrics.metric import (
    BY_RANK,
    Numbers,
    Reader,
    Unit,
    counter,
    gauge,
    of_rank,
)
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


def of_figures(value: Callable[[StepFigures], float], count: Callable[[StepFigures], float] | None = None) -> Reader:
    """Make a reader of one number per rank.

    Args:
        value: The number.
        count: What it is a sum over; a rank that has counted none has no series. None if the number is that count.
    """
    counted = count or value
    return of_rank(lambda rank: value(rank.figures) if counted(rank.figures) else None)


STEP_METRICS: Final = (
    counter(
        "torchdist.timed_steps",
        Unit.STEPS,
        "The rank's steps whose duration is known.",
        BY_RANK,
        of_rank(lambda rank: rank.steps.count),
    ),
    counter(
        "torchdist.timed_step",
        Unit.SECONDS,
        "Sum of the rank's known step durations.",
        BY_RANK,
        of_rank(lambda rank: rank.steps.sum_s),
    ),
    counter(
        "torchdist.data_wait",
        Unit.SECONDS,
        "Time that the rank's training thread waited for batches of a DataLoader, or in data_wait(). A rank without "
        "any has no series, and likewise in the metrics below.",
        BY_RANK,
        of_figures(lambda one: one.data_wait_ns / 1e9, lambda one: one.batches),
    ),
    counter(
        "torchdist.batches",
        Unit.BATCHES,
        "Batches that the rank has got by these waits.",
        BY_RANK,
        of_figures(lambda one: one.batches),
    ),
    counter(
        "torchdist.backward",
        Unit.SECONDS,
        "Time that the rank's backward passes have taken on the host. On a device they are only enqueued in that time, "
        "as far as nothing in them waits for the device.",
        BY_RANK,
        of_figures(lambda one: one.backward_ns / 1e9, lambda one: one.backward_passes),
    ),
    counter(
        "torchdist.optimizer",
        Unit.SECONDS,
        "Time that the steps of the rank's optimizers have taken on the host, at most 16 in a training step, outside "
        "of backward passes and of compiled code. On a device they are only enqueued in that time.",
        BY_RANK,
        of_figures(lambda one: one.optimizer_ns / 1e9, lambda one: one.optimizer_steps),
    ),
    counter(
        "torchdist.samples",
        Unit.SAMPLES,
        "Samples that the rank has processed, as given to mark_step(samples=).",
        BY_RANK,
        of_figures(lambda one: one.samples),
    ),
    counter(
        "torchdist.tokens",
        Unit.TOKENS,
        "Tokens that the rank has processed, as given to mark_step(tokens=).",
        BY_RANK,
        of_figures(lambda one: one.tokens),
    ),
    counter(
        "torchdist.flops",
        Unit.FLOPS,
        "Floating-point operations of the rank, as given to mark_step(flops=).",
        BY_RANK,
        of_figures(lambda one: one.flops),
    ),
    gauge(
        "torchdist.gradient_sync",
        Unit.SECONDS,
        "How long DDP reduced gradients in the newest step that it has timed itself: one of the first ten, or every "
        "hundredth. On a device by the device's clock.",
        BY_RANK,
        of_figures(lambda one: one.sync_ns / 1e9, lambda one: one.syncs_timed),
    ),
    gauge(
        "torchdist.gradient_sync.exposed",
        Unit.SECONDS,
        "How much of that the computation of gradients did not hide.",
        BY_RANK,
        of_figures(lambda one: (one.sync_ns - one.sync_overlap_ns) / 1e9, lambda one: one.syncs_timed),
    ),
)


_CHECKPOINT: Final = ("run", "rank", "operation")
_STAGE: Final = ("run", "rank", "operation", "stage")


def of_checkpoints(value: Callable[[CheckpointCounts], float], only_whole: bool = False) -> Reader:
    """Make a reader of one number per operation and stage of each rank, or per operation; zeros have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.checkpoints:
                number = value(one)
                if number and not only_whole:
                    yield (rank.run, str(rank.rank), one.operation, one.stage), number
                elif number and one.stage == WHOLE:
                    yield (rank.run, str(rank.rank), one.operation), number

    return read


def saved_age(node: NodeSnapshot) -> Numbers:
    """Yield the seconds since the last save that has ended well on a rank of the run; no series before the first."""
    newest: dict[str, float] = {}
    for rank in node.ranks:
        if rank.saved_age_s is not None and rank.up:
            newest[rank.run] = min(newest.get(rank.run, rank.saved_age_s), rank.saved_age_s)
    for run, age_s in newest.items():
        yield (run,), age_s


def save_interval(node: NodeSnapshot) -> Numbers:
    """Longest of the newest intervals between saves, of the rank of each run that saves most often."""
    shortest: dict[str, float] = {}
    for rank in node.ranks:
        if rank.save_interval_s and rank.up:
            shortest[rank.run] = min(shortest.get(rank.run, rank.save_interval_s), rank.save_interval_s)
    for run, interval_s in shortest.items():
        yield (run,), interval_s


CHECKPOINT_METRICS: Final = (
    counter(
        "torchdist.checkpoints",
        Unit.CHECKPOINTS,
        "The rank's saves and loads that have ended well; `async_save` counts when it returns, its `save` at the end.",
        _CHECKPOINT,
        of_checkpoints(lambda one: one.ended, only_whole=True),
    ),
    counter(
        "torchdist.checkpoint",
        Unit.SECONDS,
        "Time that the rank has spent in checkpoints, by stage, and as a whole (`whole`).",
        _STAGE,
        of_checkpoints(lambda one: one.duration_ns / 1e9),
    ),
    counter(
        "torchdist.checkpoint.size",
        Unit.BYTES,
        "Bytes of checkpoints that the rank has written or read, as far as the storage tells.",
        _CHECKPOINT,
        of_checkpoints(lambda one: one.message_bytes, only_whole=True),
    ),
    counter(
        "torchdist.checkpoint.files",
        Unit.FILES,
        "Files of checkpoints that the rank has written or read, as far as the storage tells.",
        _CHECKPOINT,
        of_checkpoints(lambda one: one.files, only_whole=True),
    ),
    counter(
        "torchdist.checkpoint.failures",
        Unit.CHECKPOINTS,
        "The rank's checkpoints, and stages of these, that have ended with an exception.",
        _STAGE,
        of_checkpoints(lambda one: one.failed),
    ),
    gauge(
        "torchdist.checkpoint.age",
        Unit.SECONDS,
        "Time since a live rank of the run has last finished a save, of those that this node's ranks have finished.",
        ("run",),
        saved_age,
    ),
    gauge(
        "torchdist.checkpoint.interval",
        Unit.SECONDS,
        "The longest of the last eight intervals between saves of a rank, of those of a minute or more.",
        ("run",),
        save_interval,
    ),
)
