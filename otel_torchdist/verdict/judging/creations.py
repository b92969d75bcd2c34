"""Compares the creation of groups across ranks, a collective of the world: all ranks create all groups in one order."""

from __future__ import annotations

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.verdict.launches import is_launch
from otel_torchdist.verdict.model import Verdict, verdict_at
from otel_torchdist.verdict.roll_call import ELSEWHERE, RollCall, Standing
from otel_torchdist.world.group_names import CreatedGroups
from otel_torchdist.world.mismatch import Field, Mismatch
from otel_torchdist.world.ways import CallSide, Ways


def other_creation(roll: RollCall) -> Mismatch | None:
    """Ranks that create a group under different names; None if they agree, or if no rank creates one.

    torch counts the groups that a process has created, members or not, and uses that number for the rendezvous in the
    store: ranks whose numbers differ have skipped an earlier creation, and never meet.
    """
    if roll.operation_id.channel.kind is not RecordKind.RENDEZVOUS or is_launch(roll):
        return None  # ranks create the default group under an address, not under a name
    parties: dict[str, list[int]] = {}
    for rank, operation in sorted(roll.waits.items()):
        if operation.group is not None:
            parties.setdefault(operation.group.name.name, []).append(rank)
    if len(parties) < 2:
        return None
    ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
    described = tuple((name, tuple(ranks)) for name, ranks in ordered)
    return Mismatch(roll.operation_id, Field.GROUP_NAME, roll.operation, described)


def other_order(roll: RollCall, created: CreatedGroups) -> Mismatch | None:
    """Ranks that have created the group of an operation in another order, or not all of them; None if all agree."""
    if roll.group is None:
        return None
    channel, sequence = roll.operation_id
    is_first = sequence == 1 and not channel.is_point_to_point
    has_met = not is_first or bool(roll.ranks(*ELSEWHERE))
    return created.differ_in(roll.group, is_new=not has_met)


def other_call(creation: RollCall, elsewhere: RollCall, rank: int) -> Verdict:
    """A verdict on members of a group of which some create it while others are in another operation.

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
    ways = Ways(tuple(_side(roll, ranks) for roll, ranks in parties))
    mismatch = Mismatch(majority.operation_id, Field.OPERATION, majority.operation, described, ways=ways)
    return verdict_at(VerdictKind.MISMATCHED, majority, mismatch.ranks, mismatch=mismatch)


def _side(roll: RollCall, ranks: tuple[int, ...]) -> CallSide:
    inside = (roll.waits[rank].call_site for rank in ranks if rank in roll.waits)
    return CallSide(_describe(roll), "", next(inside, None))


def _describe(roll: RollCall) -> str:
    """What was entered, and which group is created, since all creations have the same name."""
    if roll.operation_id.channel.kind is not RecordKind.RENDEZVOUS or roll.group is None:
        return roll.operation
    return f"{roll.operation} ({roll.group.label})"
