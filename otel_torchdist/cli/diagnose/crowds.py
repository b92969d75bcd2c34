"""Which ranks of a diagnosis are shown together: in a large job most of them do the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from otel_torchdist.cli.diagnose.diagnosis import Diagnosis, RankAccount
from otel_torchdist.stall.fates import describe_way
from otel_torchdist.stall.world import OperationView

SHOWN_EACH: Final = 8
"""A report on no more ranks than this shows each by itself."""


def crowds(diagnosis: Diagnosis) -> list[list[RankAccount]]:
    """Ranks that do the same, the one that waits longest first; those that the verdict names come before all others."""
    named = {*diagnosis.named}
    ordered = sorted(diagnosis.ranks, key=lambda account: (account.view.rank not in named, account.view.rank))
    if len(ordered) <= SHOWN_EACH:
        return [[account] for account in ordered]
    found: dict[Hashable, list[RankAccount]] = {}
    for account in ordered:
        is_named = account.view.rank in named
        found.setdefault((is_named, *_doing(account)), []).append(account)
    return [sorted(alike, key=_waiting_since_ns) for alike in found.values()]


def _doing(account: RankAccount) -> tuple[Hashable, ...]:
    """What a rank does, in all that a report says of it but times and process id."""
    view = account.view
    frame = account.stack.frame if account.stack is not None else None
    waits = tuple((_shown_alike(one), one.record.is_blocking) for one in account.open)
    last = (_shown_alike(view.last), view.last.failure, view.last.record.how) if view.last is not None else None
    way = describe_way(view.death) if view.death is not None else ""
    return account.life, view.failure, way, view.step, waits, last, frame


def _shown_alike(operation: OperationView) -> tuple[Hashable, ...]:
    return operation.name, operation.site, operation.call_site


def _waiting_since_ns(account: RankAccount) -> tuple[int, int]:
    since = [one.waiting_since_ns for one in account.open if one.waiting_since_ns is not None]
    return min(since, default=1 << 63), account.view.rank
