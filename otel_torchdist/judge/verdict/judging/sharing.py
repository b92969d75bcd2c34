"""Detects a group shared by two threads of a rank. The order of their calls, and so the odd rank, is random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.roll_call import RollCall
from otel_torchdist.judge.verdict.verdict import Sharing
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.judge.world.occupations import blocked_pairs, shared_by
from otel_torchdist.judge.world.threads import ThreadWait, thread_wait_of
from otel_torchdist.model.calls import Arrival, Channel
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.rank_state.lives import CRASHES
from otel_torchdist.model.rank_state.occupations import SharedGroup
from otel_torchdist.model.snapshot import RankView, WorldSnapshot


def sharing_at(world: WorldSnapshot, roll: RollCall, mismatch: Mismatch | None) -> Sharing | None:
    """Return the sharing that explains mismatched calls of a group, or calls that match but do not end.

    Args:
        world: The snapshot.
        roll: The standing of each member.
        mismatch: The difference between the calls; None if they look alike.
    """
    channel = roll.operation_id.channel
    if channel.is_point_to_point or channel.kind is not RecordKind.OPERATION:
        return None
    views = [world.ranks[rank] for rank in sorted(roll.standings)]
    last = mismatch.operation_id.sequence if mismatch is not None else roll.operation_id.sequence
    swapped = swapped_callers(views, channel, last, is_mismatch=mismatch is not None)
    blocked = _blocked_at_once(views, channel)
    sharing = swapped or blocked
    if sharing is None and mismatch is not None:
        sharing = _seen_before(views, channel)
    return sharing


def find_swapped(world: WorldSnapshot, roll: RollCall) -> Sharing | None:
    """Return the sharing by which threads with different functions entered an open operation; None if there is none."""
    channel, sequence = roll.operation_id
    if channel.is_point_to_point or channel.kind is not RecordKind.OPERATION:
        return None
    views = [world.ranks[rank] for rank in sorted(roll.standings)]
    return swapped_callers(views, channel, sequence, first=sequence)


def crashed_in_shared(world: WorldSnapshot, roll: RollCall, first: FirstDeath) -> Sharing | None:
    """Return the shared group in which the first dead ranks crashed; None if they did not crash, or share nothing.

    If gloo pairs mismatched calls, it may write beyond a buffer or abort the process.
    """
    channel = roll.operation_id.channel
    if channel.is_point_to_point or channel.kind is not RecordKind.OPERATION:
        return None
    died = [first.deaths.get(rank) for rank in first.ranks]
    if not all(death is not None and death.signal in CRASHES for death in died):
        return None
    return _blocked_at_once([world.ranks[rank] for rank in first.ranks], channel)


def swapped_callers(
    views: Sequence[RankView], channel: Channel, last: int, *, first: int = 0, is_mismatch: bool = False
) -> Sharing | None:
    """Return the sharing of two functions that made the same call of a group on two ranks and both use the group.

    Args:
        views: Members that report.
        channel: The group's collectives.
        last: Last sequence number considered.
        first: First sequence number considered.
        is_mismatch: Whether the calls are known to differ. Then one rank that uses the group from both is enough.
    """
    here: dict[int, dict[int, tuple[RankView, Arrival]]] = {}
    for view in views:
        progress = view.progress.get(channel)
        for arrival in progress.recent if progress is not None and progress.aligned else ():
            if arrival.caller and first <= arrival.sequence <= last:
                here.setdefault(arrival.sequence, {})[view.rank] = view, arrival
    for _, arrived in sorted(here.items()):
        callers = {arrival.caller for _, arrival in arrived.values()}
        if len(callers) < 2:
            continue
        using = [view for view, _ in arrived.values() if len(callers & {*view.progress[channel].callers}) > 1]
        if len(using) > 1 or (using and is_mismatch):
            return Sharing(tuple(view.rank for view in using), _example(using, channel, callers))
    return None


def _example(views: Sequence[RankView], channel: Channel, callers: set[str]) -> SharedGroup:
    """Return two calls of different functions, with their lines if known."""
    names = {
        arrival.caller: arrival.signature.operation
        for view in views
        for arrival in view.progress[channel].recent
        if arrival.signature is not None
    }
    ended = [view.last for view in views if view.last is not None]
    calls = (*ended, *(operation for view in views for operation in view.open))
    sites = {call.caller: call.call_site for call in calls if call.operation_id.channel == channel}
    first_caller, other_caller = sorted(callers)[:2]
    step = max(view.step for view in views)
    return SharedGroup(
        channel.group,
        (names.get(first_caller, ""), names.get(other_caller, "")),
        (sites.get(first_caller), sites.get(other_caller)),
        step,
        (first_caller, other_caller),
    )


def _blocked_at_once(views: Iterable[RankView], channel: Channel) -> Sharing | None:
    """Return the sharing by two threads of a rank that wait in the group now."""
    examples = {view.rank: example for view in views for example in _examples(view, channel)}
    return Sharing(tuple(examples), next(iter(examples.values()))) if examples else None


def _examples(view: RankView, channel: Channel) -> Iterator[SharedGroup]:
    in_group = [operation for operation in view.open if operation.operation_id.channel == channel]
    waiting = [operation for operation in in_group if thread_wait_of(view, operation) is ThreadWait.WAITS]
    for pair in blocked_pairs(waiting):
        example = shared_by(*pair)
        if example is not None:
            yield example


def _seen_before(views: Iterable[RankView], channel: Channel) -> Sharing | None:
    examples = {view.rank: shared for view in views for shared in view.shared_groups if shared.group == channel.group}
    return Sharing(tuple(examples), next(iter(examples.values()))) if examples else None
