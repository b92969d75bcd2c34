"""Ids of traces and spans as hashes of what they stand for, so that ranks meet in a trace without talking.

Span ids start from the nonce of a tape, which no other tape has; they stay unique whatever a run's id is. No id is 0:
OpenTelemetry takes that for "no id".
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


def trace_id_of_step(run_id: int, step: int) -> int:
    """The trace in which all ranks of a run show one step. Its bits are uniform, as ratio samplers need them."""
    return _hash(_TRACE_BYTES, "step", run_id, step)


def operation_span_id(nonce: int, number: int) -> int:
    """The span of operation `number` of a tape, known before the operation has ended."""
    return _hash(_SPAN_BYTES, "operation", nonce, number)


def anchor_span_id(nonce: int, step: int, segment: int) -> int:
    """The span under which one rank's operations of a segment of a step hang."""
    return _hash(_SPAN_BYTES, "anchor", nonce, step, segment)


def marker_span_id(nonce: int, number: int, nth: int) -> int:
    """The `nth` sign of life of an operation that is still in progress."""
    return _hash(_SPAN_BYTES, "marker", nonce, number, nth)


def stall_trace_id(run_id: int, incident: str) -> int:
    """The trace of one incident of a run; `incident` names it within the run."""
    return _hash(_TRACE_BYTES, "stall", run_id, incident)


def stall_span_id(run_id: int, incident: str, epoch: int, bar: str) -> int:
    """A bar (`root`, `rank 2`, …) in the trace of an incident; each change of the verdict is a new epoch."""
    return _hash(_SPAN_BYTES, "stall", run_id, incident, epoch, bar)


def lone_run_id(nonce: int) -> int:
    """A run id for a tape that never learnt one."""
    return _hash(_TRACE_BYTES, "run", nonce)


def run_id_of_claim(run_id: int, user: int) -> int:
    """What stands for a run id that tapes of several users bear."""
    return _hash(_TRACE_BYTES, "claim", run_id, user)


def _hash(size: int, *parts: int | str) -> int:
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "big") or 1


def run_label(run_id: int) -> str:
    """The first eight hex digits of a run id; '' while there is none."""
    return f"{run_id:032x}"[:8] if run_id else ""
