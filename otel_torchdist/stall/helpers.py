"""Processes that ranks have started and that made groups of their own: how they may end.

A helper (the checkpoint process of `async_save`, for one) is terminated when its rank ends, without a word. That is no
death, as long as it was waiting for nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from otel_torchdist.stall.world import RankView
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


def has_outlived_parent(helper: TapeIdentity, known: Iterable[TapeIdentity], running: Iterable[TapeIdentity]) -> bool:
    """Whether a tape is a helper's whose parent has ended, also where nothing is left of the parent.

    Args:
        helper: The tape's identity.
        known: All tapes that are seen.
        running: Those whose writers live and have not finished: a rank that makes its groups anew has a new tape.
    """
    if not helper.parent:
        return False
    parents = {_process(identity) for identity in known if identity.nonce == helper.parent}
    return not any(_process(identity) in parents for identity in running)


def _process(identity: TapeIdentity) -> tuple[int, int, int, int]:
    return identity.pid, identity.pid_start_ticks, identity.pid_namespace, identity.boot_id
