"""Traces that show what a histogram counts: the way from a metric to a trace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One duration and the trace in which it can be seen.

    Attributes:
        trace_id: A trace that has been exported.
        seconds: The duration.
        wall_s: When it ended, seconds since 1970.
    """

    trace_id: int
    seconds: float
    wall_s: float
