"""Where the ranks are that wait for others, in words."""

from __future__ import annotations

from collections import Counter

from otel_torchdist.verdict.model import Verdict, VerdictKind
from otel_torchdist.verdict.wording.frames import describe_frame


def where_they_wait(verdict: Verdict) -> str:
    """` in train at train.py:42`: the line of most ranks that wait, where the verdict names others."""
    match verdict.kind:
        case (
            VerdictKind.DEAD | VerdictKind.FROZEN | VerdictKind.UNMATCHED | VerdictKind.ABSENT | VerdictKind.UNREACHABLE
        ):
            waiting = [verdict.places[rank] for rank in verdict.waiting if rank in verdict.places]
        case (
            VerdictKind.SHARED_GROUP
            | VerdictKind.MISMATCHED
            | VerdictKind.CIRCULAR
            | VerdictKind.RENDEZVOUS
            | VerdictKind.DEVICE
            | VerdictKind.STUCK
            | VerdictKind.TRANSPORT
            | VerdictKind.UNKNOWN
        ):
            return ""
    frames = Counter(place.frame for place in waiting if place.frame is not None)
    return f" in {describe_frame(frames.most_common(1)[0][0])}" if frames else ""
