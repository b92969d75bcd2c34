"""Mismatched calls as the cause of a stall: different calls, and groups that some ranks reordered or skipped."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from otel_torchdist.judge.verdict.launches import is_launch
from otel_torchdist.judge.verdict.roll_call import ELSEWHERE, RollCall, Standing
from otel_torchdist.judge.verdict.verdict import Verdict, verdict_at
from otel_torchdist.judge.world.divergence import CallSide, Divergence
from otel_torchdist.judge.world.group_names import CreatedGroups
from otel_torchdist.judge.world.mismatch import Field, Mismatch, compare, find_mismatches
from otel_torchdist.model.calls import Arrival, Channel, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView


def find_name_mismatch(roll: RollCall) -> Mismatch | None:
    """Return the mismatch of ranks that create a group under different names; None if they agree.

    torch counts all calls of `new_group` in a process, and uses the count as the group's key in the store. Ranks whose
    counts differ have skipped an earlier creation, and wait under different keys forever.
    """
    if roll.operation_id.channel.kind is not RecordKind.RENDEZVOUS or is_launch(roll):
        return None  # ranks create the default group at an address, not under a name
    parties: dict[str, list[int]] = {}
    for rank, operation in sorted(roll.waits.items()):
        if operation.group is not None:
            parties.setdefault(operation.group.name.name, []).append(rank)
    if len(parties) < 2:
        return None
    ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
    described = tuple((name, tuple(ranks)) for name, ranks in ordered)
    return Mismatch(roll.operation_id, Field.GROUP_NAME, roll.operation, described)


def find_order_mismatch(roll: RollCall, created: CreatedGroups) -> Mismatch | None:
    """Return the mismatch of ranks that created groups in another order, or skipped some; None if all agree."""
    if roll.group is None:
        return None
    channel, sequence = roll.operation_id
    is_first = sequence == 1 and not channel.is_point_to_point
    has_met = not is_first or bool(roll.ranks(*ELSEWHERE))
    return created.differ_in(roll.group, is_new=not has_met)


def judge_skipped_creation(creation: RollCall, elsewhere: RollCall, rank: int) -> Verdict:
    """Return the verdict on a group that some members create while other members are in another operation.

    Args:
        creation: Roll call of the creation.
        elsewhere: Roll call of the other operation.
        rank: A member of the group that is in the other operation.
    """
    inside = creation.ranks(Standing.WAITING)
    outside = creation.members & {rank, *elsewhere.ranks(Standing.WAITING)}
    parties = [(creation, inside), (elsewhere, tuple(sorted(outside)))]
    parties.sort(key=lambda party: -len(party[1]))
    described = tuple((_describe(roll), ranks) for roll, ranks in parties)
    majority = parties[0][0]
    divergence = Divergence(tuple(_side(roll, ranks) for roll, ranks in parties))
    mismatch = Mismatch(majority.operation_id, Field.OPERATION, majority.operation, described, divergence=divergence)
    return verdict_at(VerdictKind.MISMATCHED, majority, mismatch.ranks, mismatch=mismatch)


def _side(roll: RollCall, ranks: tuple[int, ...]) -> CallSide:
    inside = (roll.waits[rank].call_site for rank in ranks if rank in roll.waits)
    return CallSide(_describe(roll), "", next(inside, None))


def _describe(roll: RollCall) -> str:
    """Return the entered operation, with the group if it is a creation: all creations have the same name."""
    if roll.operation_id.channel.kind is not RecordKind.RENDEZVOUS or roll.group is None:
        return roll.operation
    return f"{roll.operation} ({roll.group.label})"


def find_cause(views: Mapping[int, RankView], operation_id: OperationId) -> Mismatch | None:
    """Return the first mismatch, up to `operation_id`, that explains why that operation does not end.

    Args:
        views: The members that report.
        operation_id: The operation.
    """
    for mismatch in find_mismatches(views.values(), operation_id):
        if not ended_well(views.values(), mismatch.operation_id) or _is_out_of_step(views, mismatch):
            return mismatch
    return None


def past_misfit(views: Mapping[int, RankView], operation_id: OperationId) -> Mismatch | None:
    """Return the first exchange before `operation_id` with mismatched sizes that all members have completed.

    Missing bytes may have been taken from a later transfer, which then does not end although all ranks are in it.
    """
    mismatches = find_mismatches(views.values(), operation_id)
    return next((mismatch for mismatch in mismatches if mismatch.misfit is not None), None)


def ended_well(views: Collection[RankView], operation_id: OperationId) -> bool:
    """Return whether all these ranks have left an operation without an exception."""
    return all(_has_come_out(view, operation_id) for view in views)


def _has_come_out(view: RankView, operation_id: OperationId) -> bool:
    progress = view.progress.get(operation_id.channel)
    if progress is None or progress.completed < operation_id.sequence or progress.failed == operation_id.sequence:
        return False
    return view.at(operation_id) is None  # operations of a group may end out of order


def _is_out_of_step(views: Mapping[int, RankView], mismatch: Mismatch) -> bool:
    """Return whether the minority has skipped calls, or made extra ones, from that mismatch on."""
    channel, first = mismatch.operation_id
    entered = {rank: view.progress[channel].entered for rank, view in views.items()}
    behind = {rank for rank, count in entered.items() if count < max(entered.values())}
    ahead = entered.keys() - behind
    has_left_out = behind == set(mismatch.ranks)
    has_made_more = ahead == set(mismatch.ranks) and mismatch.field is Field.OPERATION
    if not mismatch.has_majority or not (has_left_out or has_made_more):
        return False
    leader = views[min(ahead)]
    return all(_fits_later(views[rank], leader, channel, first) for rank in behind)


def _fits_later(behind: RankView, ahead: RankView, channel: Channel, first: int) -> bool:
    """Return whether the calls of one rank equal calls of another rank, shifted by some positions."""
    calls, later_calls = _calls(behind, channel), _calls(ahead, channel)
    shift = ahead.progress[channel].entered - behind.progress[channel].entered
    pairs = [
        (call, later_calls[position + shift])
        for position, call in calls.items()
        if position >= first and position + shift in later_calls
    ]
    return bool(pairs) and all(
        compare({0: call, 1: later_call}, OperationId(channel, first)) is None for call, later_call in pairs
    )


def _calls(view: RankView, channel: Channel) -> dict[int, Arrival]:
    return {arrival.sequence: arrival for arrival in view.progress[channel].recent}
