"""Labels and readers of series that several subjects have: of ranks, and of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from otel_torchdist.semconv import LABEL_GROUP, LABEL_OPERATION, LABEL_RANK, LABEL_RUN
from otel_torchdist.telemetry.metrics.model import Numbers
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot, OperationSnapshot, RankSnapshot

BY_RANK: Final = (LABEL_RUN, LABEL_RANK)
BY_GROUP: Final = (LABEL_RUN, LABEL_RANK, LABEL_GROUP)
BY_OPERATION: Final = (LABEL_RUN, LABEL_RANK, LABEL_GROUP, LABEL_OPERATION)

Reader: TypeAlias = Callable[[NodeSnapshot], Numbers]


def of_rank(value: Callable[[RankSnapshot], float | None]) -> Reader:
    """Make a reader of one number per rank; ranks with None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            number = value(rank)
            if number is not None:
                yield (rank.run, str(rank.rank)), number

    return read


def of_operation(value: Callable[[OperationSnapshot], float]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per operation of each rank."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.operations:
                yield (rank.run, str(rank.rank), one.group, one.operation), value(one)

    return read
