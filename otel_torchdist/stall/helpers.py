"""Processes that ranks have started and that made groups of their own: how they may end.

A helper (the checkpoint process of `async_save`, for one) is terminated when its rank ends, without a word. That is no
death, as long as it was waiting for nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from otel_torchdist.stall.world import RankView
from otel_torchdist.tape.ancestry import has_outlived_parent
from otel_torchdist.tape.layout import TapeState
from otel_torchdist.tape.records import TapeIdentity


def settled(seen: Sequence[tuple[TapeIdentity, RankView]]) -> list[RankView]:
    """The views of tapes, where helpers that have ended with their rank are shown as finished.

    Args:
        seen: Each tape's identity and view, those of the ranks that have helpers among them.
    """
    if not any(identity.parent for identity, _ in seen):
        return [view for _, view in seen]
    running = [identity for identity, view in seen if view.alive and view.state is TapeState.RUNNING]
    known = [identity for identity, _ in seen]
    return [
        dataclasses.replace(view, state=TapeState.FINISHED)
        if view.is_dead and is_idle(view) and has_outlived_parent(identity, known, running)
        else view
        for identity, view in seen
    ]


def is_idle(view: RankView) -> bool:
    """Whether a rank that is gone was waiting for nothing, and did not fail."""
    return view.state is TapeState.RUNNING and all(one.waiting_since_ns is None for one in view.open)
