"""The launch of a world: ranks create its default group at an address, in a store hosted by one of them.

A rank connects to the store within moments, unless no process answers at the address. The rank that hosts the store
waits in it until all ranks have connected.
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
    """Facts about a launch, from the records of its ranks; empty for other operations.

    Attributes:
        sizes: Given world size by rank, if ranks at one address were given different sizes.
        in_use: Occupied address by rank, for ranks that could not host the store at it.
        left_over: By rank, the file of an earlier launch that misled it; see `file_left_over`.
        cut_off: Ranks that lost a connection, or could not connect, while they created the group.
    """

    sizes: Mapping[int, int] = field(default_factory=dict[int, int])
    in_use: Mapping[int, str] = field(default_factory=dict[int, str])
    left_over: Mapping[int, str] = field(default_factory=dict[int, str])
    cut_off: tuple[int, ...] = ()


def is_launch(roll: RollCall) -> bool:
    """Return whether an operation is the creation of the default group."""
    return roll.operation_id.channel.kind is RecordKind.RENDEZVOUS and roll.operation == INIT_PROCESS_GROUP


def address_of(roll: RollCall, rank: int) -> str:
    """Return the address of the store that a waiting rank uses; '' if unknown."""
    operation = roll.waits.get(rank)
    return operation.group.name.address if operation is not None and operation.group is not None else ""


def is_beyond_world_size(roll: RollCall, rank: int) -> bool:
    """Return whether a rank number is too large for the world size of its launch."""
    return is_launch(roll) and roll.group is not None and rank >= len(roll.group.members)


def beyond_world_size(roll: RollCall, now_ns: int, threshold_ns: int) -> tuple[int, ...]:
    """Return the ranks that have waited for the threshold although their number exceeds the world size, ascending."""
    waiting = [rank for rank in roll.ranks(Standing.WAITING) if is_beyond_world_size(roll, rank)]
    return tuple(rank for rank in waiting if now_ns - since_of(roll.waits[rank]) >= threshold_ns)


def failed_alone(roll: RollCall, members: Iterable[RankView]) -> tuple[int, ...]:
    """Return the ranks that failed in a launch not because of other ranks, ascending."""
    if not is_launch(roll):
        return ()
    ended = [view for view in members if life_in(view).ended_badly]
    failed = {view.rank: view.last for view in ended if view.last is not None and not view.open}
    failed = {
        rank: last
        for rank, last in sorted(failed.items())
        if last.operation_id == roll.operation_id and last.record.how is How.FAILED
    }
    at_fault = [
        rank for rank, last in failed.items() if last.record.blame is Blame.TAKEN or is_beyond_world_size(roll, rank)
    ]
    misled = [rank for rank, last in failed.items() if file_left_over(last)]
    if not at_fault and misled:
        first_ns = min(failed[rank].record.completed_ns or 0 for rank in misled)
        others = [view for view in ended if view.rank not in misled]
        # A connection to a dead rank's address fails in the same way.
        at_fault = misled if all(view.lifetime.reaches(first_ns) for view in others) else []
    return tuple(at_fault)


def file_left_over(operation: OperationView | None) -> str:
    """Return the rendezvous file that led a rank to processes of an earlier launch; '' for other failures.

    Each launch appends to the file, and a later launch also reads the entries of an earlier one.
    """
    if operation is None or operation.group is None or operation.record.blame is not Blame.CONNECTION:
        return ""
    address = operation.group.name.address
    return address if is_path(address) else ""


def is_path(address: str) -> bool:
    """Return whether an address is the path of a rendezvous file."""
    return address.startswith("/")


def address_in_use(operation: OperationView | None) -> str:
    """Return the occupied address at which a rank could not host the store; '' if it failed for another reason."""
    if operation is None or operation.group is None or operation.record.blame is not Blame.TAKEN:
        return ""
    return operation.group.name.address


def sizes_given(roll: RollCall, members: Iterable[RankView]) -> dict[int, int]:
    """Return the world size given to each rank, if sizes differ at one address and some ranks are missing."""
    views = list(members)
    sizes = {view.rank: view.world_size for view in views}
    others = {rank: size for view in views for rank, size in view.other_sizes.items()}
    return others | sizes if others and (roll.silent or others.keys() & sizes.keys()) else {}


def minority_of(sizes: Mapping[int, int]) -> tuple[int, ...]:
    """Return the ranks given another size than the majority, ascending; empty if there is no majority."""
    counts = Counter(sizes.values()).most_common()
    if not counts or counts[0][1] * 2 <= len(sizes):
        return ()
    return tuple(sorted(rank for rank, size in sizes.items() if size != counts[0][0]))


def cut_off(roll: RollCall, now_ns: int, threshold_ns: int) -> tuple[int, ...]:
    """Return the ranks that have not reached the store for the threshold, although its host waits in it, ascending.

    An unseen rank may be the host that these ranks try to reach, or its node may be the reason. If a rank is unseen,
    only ranks that use another address than the host count.
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
