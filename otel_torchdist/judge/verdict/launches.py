"""The launch of a world: its default group, which ranks create under an address, in a store that one of them hosts.

A rank is without a store for a moment only, unless nothing answers where it looks for one. The rank that hosts the
store waits in it until all have come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from otel_torchdist.judge.verdict.roll_call import HOST, RollCall, Standing, since_of
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import Blame, How, RecordKind
from otel_torchdist.model.names import INIT_PROCESS_GROUP
from otel_torchdist.model.snapshot import RankView, life_in


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What ranks know of the launch that a verdict is on; empty for other operations.

    Attributes:
        sizes: By rank, the world size that it was given, if ranks that meet at one address were given several.
        in_use: By rank, the address at which it could not host the store, for it is in use.
        left_over: By rank, the file that leads to ranks which are not there; see `file_left_over`.
        cut_off: Ranks that have lost a connection, or found nobody, as they created the group.
    """

    sizes: Mapping[int, int] = field(default_factory=dict[int, int])
    in_use: Mapping[int, str] = field(default_factory=dict[int, str])
    left_over: Mapping[int, str] = field(default_factory=dict[int, str])
    cut_off: tuple[int, ...] = ()


def is_launch(roll: RollCall) -> bool:
    """Whether an operation is the creation of the default group."""
    return roll.operation_id.channel.kind is RecordKind.RENDEZVOUS and roll.operation == INIT_PROCESS_GROUP


def address_of(roll: RollCall, rank: int) -> str:
    """Where a rank that waits there meets the others; '' if that is not known."""
    operation = roll.waits.get(rank)
    return operation.group.name.address if operation is not None and operation.group is not None else ""


def has_no_seat(roll: RollCall, rank: int) -> bool:
    """Whether a rank has come to a launch whose world is too small for it."""
    return is_launch(roll) and roll.group is not None and rank >= len(roll.group.members)


def unseated(roll: RollCall, now_ns: int, threshold_ns: int) -> tuple[int, ...]:
    """The ranks that have waited for the threshold in a launch whose world is too small for them, ascending."""
    waiting = [rank for rank in roll.ranks(Standing.WAITING) if has_no_seat(roll, rank)]
    return tuple(rank for rank in waiting if now_ns - since_of(roll.waits[rank]) >= threshold_ns)


def failed_alone(roll: RollCall, members: Iterable[RankView]) -> tuple[int, ...]:
    """The ranks that a launch has ended for a reason of their own, ascending: no other rank could help that."""
    if not is_launch(roll):
        return ()
    ended = [view for view in members if life_in(view).ended_badly]
    failed = {view.rank: view.last for view in ended if view.last is not None and not view.open}
    failed = {
        rank: last
        for rank, last in sorted(failed.items())
        if last.operation_id == roll.operation_id and last.record.how is How.FAILED
    }
    own = [rank for rank, last in failed.items() if last.record.blame is Blame.TAKEN or has_no_seat(roll, rank)]
    misled = [rank for rank, last in failed.items() if file_left_over(last)]
    if not own and misled:
        first_ns = min(failed[rank].record.completed_ns or 0 for rank in misled)
        others = [view for view in ended if view.rank not in misled]
        # Nobody listens at the address of a rank that has died either.
        own = misled if all(view.life.reaches(first_ns) for view in others) else []
    return tuple(own)


def file_left_over(operation: OperationView | None) -> str:
    """The file in which a rank looked for others that were not where it says; '' if that is not why it failed.

    Each launch adds to the file, and what an earlier one has left there is found as well.
    """
    if operation is None or operation.group is None or operation.record.blame is not Blame.CONNECTION:
        return ""
    address = operation.group.name.address
    return address if is_path(address) else ""


def is_path(address: str) -> bool:
    """Whether an address is that of a file in which ranks meet."""
    return address.startswith("/")


def address_in_use(operation: OperationView | None) -> str:
    """The address at which a rank could not host the store, for it is in use; '' if that is not why it failed."""
    if operation is None or operation.group is None or operation.record.blame is not Blame.TAKEN:
        return ""
    return operation.group.name.address


def sizes_given(roll: RollCall, members: Iterable[RankView]) -> dict[int, int]:
    """By rank, the world size that it was given, if ranks at one address were given several, and some do not come."""
    views = list(members)
    own = {view.rank: view.world_size for view in views}
    others = {rank: size for view in views for rank, size in view.other_sizes.items()}
    return others | own if others and (roll.silent or others.keys() & own.keys()) else {}


def fewest(sizes: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks that were given another size than most others, ascending; none if there is no majority."""
    counts = Counter(sizes.values()).most_common()
    if not counts or counts[0][1] * 2 <= len(sizes):
        return ()
    return tuple(sorted(rank for rank, size in sizes.items() if size != counts[0][0]))


def cut_off(roll: RollCall, now_ns: int, threshold_ns: int) -> tuple[int, ...]:
    """The ranks that have found no store for the threshold, although the one that hosts it is there, ascending.

    Where another rank has not been seen, that one may be the host of what they look for, or its node be the reason;
    then only those count that look elsewhere than the host.
    """
    if not is_launch(roll) or HOST not in roll.waits:
        return ()
    lost = [rank for rank in roll.ranks(Standing.WAITING) if rank != HOST and _has_no_store(roll, rank)]
    lost = [rank for rank in lost if now_ns - since_of(roll.waits[rank]) >= threshold_ns]
    elsewhere = tuple(rank for rank in lost if address_of(roll, rank) != address_of(roll, HOST))
    return elsewhere or (() if roll.silent else tuple(lost))


def _has_no_store(roll: RollCall, rank: int) -> bool:
    group = roll.waits[rank].group
    return group is not None and bool(group.name.address) and not group.name.backend
