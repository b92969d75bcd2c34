"""In which remote procedure call a rank waits, in words."""

from __future__ import annotations

from typing import Final

from otel_torchdist.units import seconds
from otel_torchdist.world.places import RankPlace
from otel_torchdist.world.remote_waits import CallStage

_SERVED: Final = {
    CallStage.RUNS: "which has run for {age}",
    CallStage.WAITS: "which is in {operation}",
    CallStage.STOPPED: "which does not run, because it is stopped",
    CallStage.DEFERRED: "which has returned a future",
    CallStage.NOT_BEGUN: "which is not seen to have begun in {age}",
    CallStage.UNSEEN: "which is not seen from here",
}


def describe_call(place: RankPlace, subject: str) -> str:
    """`it waits for train on worker1 (rank 1), which has run for 12.0 s`; '' for a rank that waits in no call."""
    remote = place.remote
    if remote is None:
        return ""
    operation = remote.operation.name if remote.operation is not None else ""
    served = _SERVED[remote.served].format(age=seconds(place.remote_for_ns / 1e9), operation=operation)
    return f"{subject} waits for {remote.text}, {served}"
