"""Sizes and bandwidths of operations, as defined by NVIDIA's nccl-tests.

Source: `doc/PERFORMANCE.md` and the `GetBw` functions of https://github.com/NVIDIA/nccl-tests. The *size* S of an
operation is its largest buffer on any rank. Algorithm bandwidth is S / t. Bus bandwidth is algorithm bandwidth times a
factor, which makes it comparable with the hardware's bandwidth for any number of ranks.
"""

from __future__ import annotations

import math
from typing import Final

from otel_torchdist.model.collectives import BARRIERS, COLLECTIVES, Contribution, operations_where
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.text import item_bytes
from otel_torchdist.sources.history.call_kinds import CallKind

_GIVES_SHARE: Final = operations_where(lambda row: row.family.has_output_parts and not row.family.has_input_parts)
"""Operations to which each member contributes an equal share of the size."""
_KNOWN_TO_ALL: Final = operations_where(lambda row: row.contribution in (Contribution.ALL, Contribution.TIMES_GROUP))
"""Operations whose size is in every rank's record, not only in the root's or sender's."""


def bus_factor(operation: str, members: int) -> float | None:
    """Return bus bandwidth divided by algorithm bandwidth, or None if nccl-tests does not define it."""
    row = COLLECTIVES.get(operation)
    if row is None or row.family.bus_factor is None or members <= 0:
        return None
    return row.family.bus_factor(members)


def sent_bytes(operation: str, message_bytes: int, members: int) -> float:
    """Return the average bytes that a member sends with the algorithm that sends the fewest.

    Args:
        operation: Name of the operation.
        message_bytes: Bytes that this rank contributes.
        members: Number of ranks in the group.

    Returns:
        A lower bound, because libraries may choose other algorithms; 0 for receives and operations that move no data.
    """
    row = COLLECTIVES.get(operation)
    if row is None or row.family.sent_factor is None or members < 2:
        return 0.0
    return row.family.sent_factor(members) * message_bytes


def size_of(kind: CallKind) -> int | None:
    """Return the size of an operation in bytes, as defined by nccl-tests.

    Args:
        kind: The operation as recorded by one rank.

    Returns:
        The size, which is the same on all ranks; for an `all_to_all` with uneven parts, the bytes that this rank sends.
        0 for operations that move no data; None if the record does not show the size.
    """
    row = COLLECTIVES.get(kind.operation)
    contributed = kind.message_bytes
    if row is None or not row.family.moves_data:
        is_empty = kind.operation in BARRIERS or kind.record_kind is RecordKind.RENDEZVOUS
        return 0 if is_empty else contributed or None
    if not contributed and kind.signature is not None and not kind.signature.tensors:
        return None  # the profiler did not record the tensors
    if kind.operation in _GIVES_SHARE:
        return contributed * kind.members if kind.members else None
    if kind.operation in _KNOWN_TO_ALL:
        return contributed
    described = described_bytes(kind.signature)
    if described is None:
        return contributed or None
    return described * kind.members if row.describes_share else described


def described_bytes(signature: SignatureName | None) -> int | None:
    """Return the bytes of all tensors in a signature, or None if it does not describe all of them."""
    if signature is None or len(signature.shapes) != signature.tensors or not signature.dtypes:
        return None
    dtypes = signature.dtypes
    if len(dtypes) == 1:
        dtypes *= signature.tensors
    return sum(math.prod(shape) * item_bytes(dtype) for shape, dtype in zip(signature.shapes, dtypes, strict=False))
