"""In which remote procedure call a rank waits, in words."""

from __future__ import annotations

from otel_torchdist.units import seconds
from otel_torchdist.world.places import RankPlace
from otel_torchdist.world.remote_waits import CallStage


def describe_call(place: RankPlace, subject: str) -> str:
    """`it waits for train on worker1 (rank 1), which has run for 12.0 s`; '' for a rank that waits in no call."""
    remote = place.remote
    if remote is None:
        return ""
    operation = remote.operation.name if remote.operation is not None else ""
    served = _stage(remote.served, seconds(place.remote_for_ns / 1e9), operation)
    return f"{subject} waits for {remote.text}, which {served}"


def _stage(stage: CallStage, age: str, operation: str) -> str:
    match stage:
        case CallStage.RUNS:
            return f"has run for {age}"
        case CallStage.WAITS:
            return f"is in {operation}"
        case CallStage.STOPPED:
            return "does not run, because it is stopped"
        case CallStage.DEFERRED:
            return "has returned a future"
        case CallStage.NOT_BEGUN:
            return f"is not seen to have begun in {age}"
        case CallStage.UNSEEN:
            return "is not seen from here"
