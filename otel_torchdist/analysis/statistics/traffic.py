"""How many bytes an operation moves, and how bandwidth follows from them, as in NVIDIA's nccl-tests.

Source: `doc/PERFORMANCE.md` and the `GetBw` functions of https://github.com/NVIDIA/nccl-tests. There the *size* S of an
operation is that of the largest buffer that it has on any rank, algorithm bandwidth is S / t, and bus bandwidth is that
times a factor, so that it can be compared with what the hardware can do, whatever the number of ranks n.
"""

from __future__ import annotations

import math
from typing import Final

from otel_torchdist.model.collectives import BARRIERS, COLLECTIVES, Contribution, operations_where
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.units import item_bytes
from otel_torchdist.sources.history.call_kinds import CallKind

_GIVES_SHARE: Final = operations_where(lambda row: row.family.has_output_parts and not row.family.has_input_parts)
"""Operations to which each member contributes a share: the whole is as many times as large as the group."""
_KNOWN_TO_ALL: Final = operations_where(lambda row: row.contribution in (Contribution.ALL, Contribution.TIMES_GROUP))
"""Operations whose size every rank's own record has, not only that of the root or sender."""


def bus_factor(operation: str, members: int) -> float | None:
    """Return bus bandwidth divided by algorithm bandwidth; None if nccl-tests defines none for the operation."""
    row = COLLECTIVES.get(operation)
    if row is None or row.family.bus_factor is None or members <= 0:
        return None
    return row.family.bus_factor(members)


def sent_bytes(operation: str, message_bytes: int, members: int) -> float:
    """Return the bytes that a member sends, on average over all members, with the algorithm that sends the fewest.

    Args:
        operation: Its name, in whichever form.
        message_bytes: What this rank contributes.
        members: Ranks of the group.

    Returns:
        A lower bound, for libraries may choose other algorithms; 0 for what moves no data or is received.
    """
    row = COLLECTIVES.get(operation)
    if row is None or row.family.sent_factor is None or members < 2:
        return 0.0
    return row.family.sent_factor(members) * message_bytes


def size_of(kind: CallKind) -> int | None:
    """Return the size of an operation in bytes, in the sense of nccl-tests.

    Args:
        kind: The operation as one rank has recorded it.

    Returns:
        The same on all ranks, except for an `all_to_all` with uneven parts: there it is what this rank sends. 0 for
        what moves no data; None where the record does not have it.
    """
    row = COLLECTIVES.get(kind.operation)
    contributed = kind.message_bytes
    if row is None or not row.family.moves_data:
        is_empty = kind.operation in BARRIERS or kind.record_kind is RecordKind.RENDEZVOUS
        return 0 if is_empty else contributed or None
    if not contributed and kind.signature is not None and not kind.signature.tensors:
        return None  # a profiler has not recorded what was passed
    if kind.operation in _GIVES_SHARE:
        return contributed * kind.members if kind.members else None
    if kind.operation in _KNOWN_TO_ALL:
        return contributed
    described = described_bytes(kind.signature)
    if described is None:
        return contributed or None
    return described * kind.members if row.describes_share else described


def described_bytes(signature: SignatureName | None) -> int | None:
    """Return the bytes of the tensors that a signature describes; None if it does not describe all of them."""
    if signature is None or len(signature.shapes) != signature.tensors or not signature.dtypes:
        return None
    dtypes = signature.dtypes
    if len(dtypes) == 1:
        dtypes *= signature.tensors
    return sum(math.prod(shape) * item_bytes(dtype) for shape, dtype in zip(signature.shapes, dtypes, strict=False))
