"""Where the ranks are that wait for others, in words."""

from __future__ import annotations

from collections import Counter

from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.wording.frames import describe_frame


def where_they_wait(verdict: Verdict) -> str:
    """` in train at train.py:42`: the line of most ranks that wait, where the verdict names others."""
    if not verdict.kind.traits.names_others:
        return ""
    waiting = [verdict.places[rank] for rank in verdict.waiting if rank in verdict.places]
    frames = Counter(place.frame for place in waiting if place.frame is not None)
    return f" in {describe_frame(frames.most_common(1)[0][0])}" if frames else ""
