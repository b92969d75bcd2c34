"""Detects exchanges in which a rank sends a size that its peer does not expect.

Backends do not compare the sizes. gloo aborts a receiver that gets too many bytes, and leaves rows of its output
unwritten if it gets too few. NCCL waits for the missing bytes, or writes excess bytes into the next transfer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import GroupView, PartSizes
from otel_torchdist.model.collectives import EXCHANGES, SizeRule, operations_where
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.text import item_bytes
from otel_torchdist.tape.records.splits import MAX_LISTED

_UNEVEN: Final = int(Flag.UNEVEN)
"""A plain integer: arithmetic with enum members is several times slower."""
_GATHER: Final = "all_gather"
_PARTED: Final = EXCHANGES | {_GATHER}
COUNTED_IN_ROWS: Final = operations_where(lambda row: row.name == _GATHER or (row.name in EXCHANGES and row.is_flat))
"""Operations with parts counted in rows of a tensor. Other parts are counted in elements."""
_GATHERS: Final = operations_where(lambda row: row.sizes is SizeRule.PER_RANK)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Two members of a group whose sizes do not fit: the pair that differs most.

    Attributes:
        sender: Global rank of the sender.
        receiver: Global rank of the receiver.
        sent: Bytes sent.
        expected: Bytes expected.
        unit: Bytes of a row or element; 0 if the members disagree on it, or if unknown.
        ranks: The rank common to all mismatched pairs if there is exactly one; otherwise all ranks of these pairs.
        pairs: Number of mismatched pairs.
    """

    sender: int
    receiver: int
    sent: int
    expected: int
    unit: int
    ranks: tuple[int, ...]
    pairs: int


def part_sizes(operation: Operation, signature: SignatureName | None, members: int) -> PartSizes | None:
    """Return the sizes that a rank sends and expects in an `all_to_all` or an `all_gather` of a list.

    Args:
        operation: Any operation.
        signature: Its signature; None if unknown.
        members: Number of members of its group.

    Returns:
        None for other operations, in groups of more than `MAX_LISTED` members, or if the sizes are unknown.
    """
    if signature is None or signature.operation not in _PARTED or not 0 < members <= MAX_LISTED:
        return None
    splits = operation.splits
    if splits is None:
        # Each member receives the whole input of a gather.
        part, rest = divmod(operation.message_bytes, members if signature.operation != _GATHER else 1)
        if int(operation.flags) & _UNEVEN or rest:
            return None
        return PartSizes((part,) * members, (part,) * members, _unit_of(signature))
    if not len(splits.sent) == len(splits.expected) == members:
        return None
    return PartSizes(splits.sent, splits.expected, splits.unit)


def _unit_of(signature: SignatureName) -> int:
    """Return the bytes of a row of one tensor, or of an element of several; 0 if unknown."""
    if not signature.shapes or len(signature.dtypes) != 1:
        return 0
    row = signature.shapes[0][1:] if signature.operation in COUNTED_IN_ROWS else ()
    return item_bytes(signature.dtypes[0]) * math.prod(row)


def find_message_misfit(
    sender: int, receiver: int, sent: SignatureName | None, expected: SignatureName | None
) -> Misfit | None:
    """Return a message whose receiver expects another size; None if the sizes are equal or unknown."""
    sent_bytes, expected_bytes = _message_bytes(sent), _message_bytes(expected)
    if sent is None or expected is None or not sent_bytes or not expected_bytes or sent_bytes == expected_bytes:
        return None
    unit = item_bytes(sent.dtypes[0]) if sent.dtypes == expected.dtypes else 0
    return Misfit(sender, receiver, sent_bytes, expected_bytes, unit, tuple(sorted((sender, receiver))), 1)


def _message_bytes(signature: SignatureName | None) -> int:
    """Return the bytes of a message of one tensor; 0 if unknown."""
    if signature is None or signature.tensors != 1 or len(signature.shapes) != 1 or len(signature.dtypes) != 1:
        return 0
    return item_bytes(signature.dtypes[0]) * math.prod(signature.shapes[0])


def find_misfit(members: Sequence[int], sizes: Mapping[int, PartSizes]) -> Misfit | None:
    """Return the two members whose sizes differ most; None if all known sizes fit.

    Args:
        members: Global ranks of the group, in its order.
        sizes: Sizes sent and expected, by global rank.
    """
    positions = {rank: position for position, rank in enumerate(members)}
    known = [
        (rank, positions[rank], own)
        for rank, own in sorted(sizes.items())
        if rank in positions and len(own.sent) == len(own.expected) == len(members)
    ]
    pairs = {
        (sender, receiver): abs(own.sent[receiver_position] - other.expected[sender_position])
        for sender, sender_position, own in known
        for receiver, receiver_position, other in known
        if own.sent[receiver_position] != other.expected[sender_position]
    }
    if not pairs:
        return None
    concerned = {rank for pair in pairs for rank in pair}
    common = concerned.intersection(*pairs)
    ranks = common if len(common) == 1 else concerned
    sender, receiver = max(pairs, key=lambda pair: (pair[0] != pair[1], pairs[pair], pair[0] in common))
    own, other = sizes[sender], sizes[receiver]
    units = {own.unit, other.unit} - {0}
    return Misfit(
        sender=sender,
        receiver=receiver,
        sent=own.sent[positions[receiver]],
        expected=other.expected[positions[sender]],
        unit=units.pop() if len(units) == 1 else 0,
        ranks=tuple(sorted(ranks)),
        pairs=len(pairs),
    )


def wants_one_size(group: GroupView | None, signature: SignatureName | None) -> bool:
    """Return whether gloo runs a gather. gloo requires all outputs on a rank to have the size of its input."""
    if group is None or signature is None or signature.operation not in _GATHERS or signature.device != "cpu":
        return False
    return not {"gloo", "cpu:gloo"}.isdisjoint(group.name.backend.split(","))
