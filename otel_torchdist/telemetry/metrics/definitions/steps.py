"""Metrics of steps, the parts of their time, and checkpoints."""

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
    """Return a reader of one number per rank.

    Args:
        value: The number.
        count: Number of summands of `value`; None if `value` is itself a count. Ranks with count 0 have no series.
    """
    counted = count or value
    return of_rank(lambda rank: value(rank.figures) if counted(rank.figures) else None)


STEP_METRICS: Final = (
    counter(
        "torchdist.timed_steps",
        Unit.STEPS,
        "Steps of the rank with a known duration.",
        BY_RANK,
        of_rank(lambda rank: rank.steps.count),
    ),
    counter(
        "torchdist.timed_step",
        Unit.SECONDS,
        "Sum of the known durations of the rank's steps.",
        BY_RANK,
        of_rank(lambda rank: rank.steps.sum_s),
    ),
    counter(
        "torchdist.data_wait",
        Unit.SECONDS,
        "Time that the rank's training thread waited for batches of a DataLoader, or in data_wait(). Ranks without "
        "such waits have no series; likewise for the metrics below.",
        BY_RANK,
        of_figures(lambda figures: figures.data_wait_ns / 1e9, lambda figures: figures.batches),
    ),
    counter(
        "torchdist.batches",
        Unit.BATCHES,
        "Batches that the rank's training thread waited for.",
        BY_RANK,
        of_figures(lambda figures: figures.batches),
    ),
    counter(
        "torchdist.backward",
        Unit.SECONDS,
        "Time of the rank's backward passes on the host. With a device, this is the time to enqueue them, unless they "
        "wait for the device.",
        BY_RANK,
        of_figures(lambda figures: figures.backward_ns / 1e9, lambda figures: figures.backward_passes),
    ),
    counter(
        "torchdist.optimizer",
        Unit.SECONDS,
        "Time of the rank's optimizer steps on the host, for at most 16 per training step, outside of backward passes "
        "and compiled code. With a device, this is the time to enqueue them.",
        BY_RANK,
        of_figures(lambda figures: figures.optimizer_ns / 1e9, lambda figures: figures.optimizer_steps),
    ),
    counter(
        "torchdist.samples",
        Unit.SAMPLES,
        "Samples processed by the rank, as passed to mark_step(samples=).",
        BY_RANK,
        of_figures(lambda figures: figures.samples),
    ),
    counter(
        "torchdist.tokens",
        Unit.TOKENS,
        "Tokens processed by the rank, as passed to mark_step(tokens=).",
        BY_RANK,
        of_figures(lambda figures: figures.tokens),
    ),
    counter(
        "torchdist.flops",
        Unit.FLOPS,
        "Floating-point operations of the rank, as passed to mark_step(flops=).",
        BY_RANK,
        of_figures(lambda figures: figures.flops),
    ),
    gauge(
        "torchdist.gradient_sync",
        Unit.SECONDS,
        "Time of DDP's gradient reduction in the newest step that DDP timed: each of the first ten steps, then every "
        "hundredth. With a device, by the device's clock.",
        BY_RANK,
        of_figures(lambda figures: figures.sync_ns / 1e9, lambda figures: figures.syncs_timed),
    ),
    gauge(
        "torchdist.gradient_sync.exposed",
        Unit.SECONDS,
        "Part of DDP's gradient reduction that the computation of gradients did not hide.",
        BY_RANK,
        of_figures(
            lambda figures: (figures.sync_ns - figures.sync_overlap_ns) / 1e9, lambda figures: figures.syncs_timed
        ),
    ),
)


_CHECKPOINT: Final = ("run", "rank", "operation")
_STAGE: Final = ("run", "rank", "operation", "stage")


def of_checkpoints(value: Callable[[CheckpointCounts], float], only_whole: bool = False) -> Reader:
    """Return a reader of one number per operation and stage, or per operation if `only_whole`. Zeros have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for counts in rank.checkpoints:
                number = value(counts)
                if number and not only_whole:
                    yield (rank.run, str(rank.rank), counts.operation, counts.stage), number
                elif number and counts.stage == WHOLE:
                    yield (rank.run, str(rank.rank), counts.operation), number

    return read


def saved_age(node: NodeSnapshot) -> Numbers:
    """Yield the seconds since the last successful save on a live rank of each run. No series before the first save."""
    newest: dict[str, float] = {}
    for rank in node.ranks:
        if rank.saved_age_s is not None and rank.up:
            newest[rank.run] = min(newest.get(rank.run, rank.saved_age_s), rank.saved_age_s)
    for run, age_s in newest.items():
        yield (run,), age_s


def save_interval(node: NodeSnapshot) -> Numbers:
    """Yield the longest of the newest intervals between saves, for the rank of each run that saves most often."""
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
        "Successful saves and loads of the rank. `async_save` counts at its return, its `save` at the end.",
        _CHECKPOINT,
        of_checkpoints(lambda counts: counts.ended, only_whole=True),
    ),
    counter(
        "torchdist.checkpoint",
        Unit.SECONDS,
        "Time that the rank spent in checkpoints, by stage, and in total (`whole`).",
        _STAGE,
        of_checkpoints(lambda counts: counts.duration_ns / 1e9),
    ),
    counter(
        "torchdist.checkpoint.size",
        Unit.BYTES,
        "Bytes of checkpoints written or read by the rank, if the storage reports them.",
        _CHECKPOINT,
        of_checkpoints(lambda counts: counts.message_bytes, only_whole=True),
    ),
    counter(
        "torchdist.checkpoint.files",
        Unit.FILES,
        "Files of checkpoints written or read by the rank, if the storage reports them.",
        _CHECKPOINT,
        of_checkpoints(lambda counts: counts.files, only_whole=True),
    ),
    counter(
        "torchdist.checkpoint.failures",
        Unit.CHECKPOINTS,
        "Checkpoints of the rank, and stages of checkpoints, that ended with an exception.",
        _STAGE,
        of_checkpoints(lambda counts: counts.failed),
    ),
    gauge(
        "torchdist.checkpoint.age",
        Unit.SECONDS,
        "Time since the last completed save of a live rank of the run on this node.",
        ("run",),
        saved_age,
    ),
    gauge(
        "torchdist.checkpoint.interval",
        Unit.SECONDS,
        "Longest of the last eight intervals between saves of a rank, without intervals shorter than a minute.",
        ("run",),
        save_interval,
    ),
)
