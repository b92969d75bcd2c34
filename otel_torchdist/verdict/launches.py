"""The launch of a world: its default group, which ranks create under an address, in a store that one of them hosts.

A rank is without a store for a moment only, unless nothing answers where it looks for one. The rank that hosts the
store waits in it until all have come.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.verdict.roll_call import RollCall, Standing, since_of

DEFAULT_GROUP: Final = "init_process_group"
HOST: Final = 0
"""The rank that hosts the store, unless the launcher does."""
_LOCAL: Final = ("localhost:", "127.", "[::1]:", "/")


def is_launch(roll: RollCall) -> bool:
    """Whether an operation is the creation of the default group."""
    return roll.operation_id.channel.kind is RecordKind.RENDEZVOUS and roll.operation == DEFAULT_GROUP


def address_of(roll: RollCall, rank: int) -> str:
    """Where a rank that waits there meets the others; '' if that is not known."""
    operation = roll.waits.get(rank)
    return operation.group.name.address if operation is not None and operation.group is not None else ""


def is_within_node(address: str) -> bool:
    """Whether only ranks of one node can meet at an address: a rank that is not seen there is nowhere."""
    return address.startswith(_LOCAL)


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
