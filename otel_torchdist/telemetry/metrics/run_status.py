"""What a reader reports of a run to its metrics: a stall, the end of an attempt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StallStatus:
    """The one incident of a run, as the metrics show it.

    Attributes:
        run_id: The run.
        group_key: `GroupName.key` of the group whose operation stalls; '' if it is not known.
        operation: That operation.
        verdict: The verdict's name.
        ranks: Global ranks that the verdict names.
        coverage: How many members reported, such as `3/4`.
        trace_id: Trace of the incident.
    """

    run_id: int
    group_key: str
    operation: str
    verdict: str
    ranks: tuple[int, ...]
    coverage: str
    trace_id: int


@dataclass(frozen=True, slots=True)
class EndStatus:
    """How an attempt has ended; attributes as in `StallStatus`. Its verdict may be `finished` or `ended`, too."""

    run_id: int
    group_key: str
    operation: str
    verdict: str
    ranks: tuple[int, ...]
    trace_id: int
