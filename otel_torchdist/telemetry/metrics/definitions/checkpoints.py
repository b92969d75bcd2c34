"""Checkpoints of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist import semconv
from otel_torchdist.semconv import LABEL_OPERATION, LABEL_RANK, LABEL_RUN
from otel_torchdist.telemetry.metrics.checkpoints import WHOLE, CheckpointCounts
from otel_torchdist.telemetry.metrics.model import MetricKind, NumberMetric, Numbers, Unit
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot

_CHECKPOINT: Final = (LABEL_RUN, LABEL_RANK, LABEL_OPERATION)
_STAGE: Final = (LABEL_RUN, LABEL_RANK, LABEL_OPERATION, semconv.LABEL_STAGE)


def of_checkpoints(
    value: Callable[[CheckpointCounts], float], only_whole: bool = False
) -> Callable[[NodeSnapshot], Numbers]:
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
    """Seconds since the last save that has ended well on a rank of the run; no series before the first."""
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
    NumberMetric(
        semconv.CHECKPOINTS,
        MetricKind.COUNTER,
        Unit.CHECKPOINTS,
        "The rank's saves and loads that have ended well; `async_save` counts when it returns, its `save` at the end.",
        _CHECKPOINT,
        of_checkpoints(lambda one: one.ended, only_whole=True),
    ),
    NumberMetric(
        semconv.CHECKPOINT_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time that the rank has spent in checkpoints, by stage, and as a whole (`whole`).",
        _STAGE,
        of_checkpoints(lambda one: one.duration_ns / 1e9),
    ),
    NumberMetric(
        semconv.CHECKPOINT_BYTES,
        MetricKind.COUNTER,
        Unit.BYTES,
        "Bytes of checkpoints that the rank has written or read, as far as the storage tells.",
        _CHECKPOINT,
        of_checkpoints(lambda one: one.message_bytes, only_whole=True),
    ),
    NumberMetric(
        semconv.CHECKPOINT_FILE_COUNT,
        MetricKind.COUNTER,
        Unit.FILES,
        "Files of checkpoints that the rank has written or read, as far as the storage tells.",
        _CHECKPOINT,
        of_checkpoints(lambda one: one.files, only_whole=True),
    ),
    NumberMetric(
        semconv.CHECKPOINT_FAILURES,
        MetricKind.COUNTER,
        Unit.CHECKPOINTS,
        "The rank's checkpoints, and stages of these, that have ended with an exception.",
        _STAGE,
        of_checkpoints(lambda one: one.failed),
    ),
    NumberMetric(
        semconv.CHECKPOINT_AGE,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "Time since a live rank of the run has last finished a save, of those that this node's ranks have finished.",
        (LABEL_RUN,),
        saved_age,
    ),
    NumberMetric(
        semconv.CHECKPOINT_INTERVAL,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "The longest of the last eight intervals between saves of a rank, of those of a minute or more.",
        (LABEL_RUN,),
        save_interval,
    ),
)
