"""A trace that was decoded, and how much of it was no good."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.profiles.profile import RankProfile


@dataclass(frozen=True, slots=True)
class DecodedTrace:
    """A trace.

    Attributes:
        profile: What could be read.
        bad: How many of its parts were left out.
        first_fault: What was wrong with the first of them; '' if there are none.
    """

    profile: RankProfile
    bad: int = 0
    first_fault: str = ""
