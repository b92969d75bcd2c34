"""How many bytes a member of a group sends in an operation, by the algorithms that move the fewest.

S is the rank's own tensor and n the number of members: all_reduce 2(n-1)/n·S, reduce_scatter (n-1)/n·S, all_gather
(n-1)·S, all_to_all (n-1)/n·S, send S. Where a root gives or takes, it is the average of all members. Libraries may
choose other algorithms: these are lower bounds, and nccl-tests' bus bandwidth rests on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist.statistics.traffic import kind_of

_FACTORS: Final[dict[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "send": lambda _: 1.0,
}


def sent_bytes(operation: str, message_bytes: int, members: int) -> float:
    """Bytes that a member sends, on average over all members; 0 for what moves no data or is received.

    Args:
        operation: Its name, in whichever form.
        message_bytes: What this rank contributes.
        members: Ranks of the group.
    """
    factor = _FACTORS.get(kind_of(operation))
    return factor(members) * message_bytes if factor is not None and members > 1 else 0.0
