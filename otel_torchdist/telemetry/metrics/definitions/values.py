"""The values in tensors, scales of gradients, and parameters that are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from otel_torchdist.model.numerics import Numerics
from otel_torchdist.telemetry.metrics.model import (
    BY_OPERATION,
    BY_RANK,
    MetricKind,
    NumberMetric,
    Numbers,
    Unit,
    of_rank,
)
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


def unseen_operations(node: NodeSnapshot) -> Numbers:
    """Operations of each rank whose inputs were not looked at, by the reason."""
    for rank in node.ranks:
        for reason, count in rank.totals.unseen.items():
            yield (rank.run, str(rank.rank), reason), count


def of_values(value: Callable[[Numerics], float | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per operation of each rank whose inputs were sampled; None and NaN have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.operations:
                number = value(one.values) if one.values is not None else None
                if number is not None and not math.isnan(number):
                    yield (rank.run, str(rank.rank), one.group, one.operation), number

    return read


VALUE_METRICS: Final = (
    NumberMetric(
        "torchdist.sampled_operations",
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations whose tensors' statistics were taken; no series if there are none, as for those below.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.sampled or None),
    ),
    NumberMetric(
        "torchdist.non_finite_operations",
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations with an input that was infinite or not a number, of those that were looked at.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.non_finite if rank.totals.sampled or rank.totals.non_finite else None),
    ),
    NumberMetric(
        "torchdist.unseen_operations",
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations whose inputs should have been looked at and were not, all or some: because of their "
        "type, layout or device, while a graph was captured, because too much was on its way from the device (full), "
        "or because it failed.",
        ("run", "rank", "unseen"),
        unseen_operations,
    ),
    NumberMetric(
        "torchdist.amp.skipped_steps",
        MetricKind.COUNTER,
        Unit.STEPS,
        "The rank's steps that a gradient scaler has left out because of an overflow.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.skipped_steps or None),
    ),
    NumberMetric(
        "torchdist.amp.scale",
        MetricKind.GAUGE,
        Unit.NONE,
        "The scale of the rank's gradient scaler in its newest step; no series if it is not known.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.loss_scale),
    ),
    NumberMetric(
        "torchdist.parameter_checksums",
        MetricKind.COUNTER,
        Unit.CHECKSUMS,
        "Checksums that the rank has taken of parameters that other ranks must have alike.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.compared_parameters or None),
    ),
    NumberMetric(
        "torchdist.replicas.left_out",
        MetricKind.GAUGE,
        Unit.NONE,
        "The rank's models and optimizers whose parameters are not compared, because there are too many of them.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.replicas_left_out if rank.totals.compared_parameters else None),
    ),
    NumberMetric(
        "torchdist.input.norm",
        MetricKind.GAUGE,
        Unit.NONE,
        "L2 norm of the inputs of the newest sampled operation.",
        BY_OPERATION,
        of_values(lambda values: values.norm),
    ),
    NumberMetric(
        "torchdist.input.absmax",
        MetricKind.GAUGE,
        Unit.NONE,
        "Largest magnitude in the inputs of the newest sampled operation.",
        BY_OPERATION,
        of_values(lambda values: values.absmax),
    ),
    NumberMetric(
        "torchdist.input.headroom",
        MetricKind.GAUGE,
        Unit.NONE,
        "How often that magnitude could be doubled before it overflowed its type.",
        BY_OPERATION,
        of_values(lambda values: values.headroom),
    ),
)
