"""Deterministic ids of traces, spans and runs.

Ids are hashes, so that ranks share a trace without communicating. Span ids derive from a tape's unique nonce, so they
stay unique even if two runs have the same id. No id is 0: OpenTelemetry treats 0 as "no id".
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8


def trace_id_of_step(run_id: int, step: int) -> int:
    """Return the id of the trace of one step, shared by all ranks of a run. Uniform bits, as ratio samplers need."""
    return _hash(_TRACE_BYTES, "step", run_id, step)


def operation_span_id(nonce: int, number: int) -> int:
    """Return the span id of operation `number` of a tape. It is known before the operation has ended."""
    return _hash(_SPAN_BYTES, "operation", nonce, number)


def activity_span_id(nonce: int, number: int) -> int:
    """Return the span id of activity `number` of a tape."""
    return _hash(_SPAN_BYTES, "activity", nonce, number)


def anchor_span_id(nonce: int, step: int, segment: int) -> int:
    """Return the id of the parent span of one rank's operations in a segment of a step."""
    return _hash(_SPAN_BYTES, "anchor", nonce, step, segment)


def marker_span_id(nonce: int, number: int, nth: int) -> int:
    """Return the span id of the `nth` marker of an operation in flight."""
    return _hash(_SPAN_BYTES, "marker", nonce, number, nth)


def stall_trace_id(run_id: int, incident: str) -> int:
    """Return the trace id of one incident of a run; `incident` names it within the run."""
    return _hash(_TRACE_BYTES, "stall", run_id, incident)


def stall_span_id(run_id: int, incident: str, epoch: int, bar: str) -> int:
    """Return the span id of a bar (`root`, `rank 2`, …) in an incident's trace. Each new verdict begins an epoch."""
    return _hash(_SPAN_BYTES, "stall", run_id, incident, epoch, bar)


def lone_run_id(nonce: int) -> int:
    """Return a run id for a tape without one."""
    return _hash(_TRACE_BYTES, "run", nonce)


def run_id_of_claim(run_id: int, user: int) -> int:
    """Return the substitute run id of one user, for a run id that the tapes of several users carry."""
    return _hash(_TRACE_BYTES, "claim", run_id, user)


def imported_run_id(contents: Iterable[str]) -> int:
    """Return the id of a run imported from files, from digests of their contents in any order."""
    return _hash(_TRACE_BYTES, "imported", *sorted(contents))


def imported_part_id(run_id: int, part: str) -> int:
    """Return the run id for the import of a part of a run, so that parts have distinct traces and spans."""
    return _hash(_TRACE_BYTES, "part", run_id, part)


def imported_nonce(part_id: int, rank: int) -> int:
    """Return the substitute for a tape's nonce in the import of one rank."""
    return _hash(_SPAN_BYTES, "imported", part_id, rank)


def _hash(size: int, *parts: int | str) -> int:
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "big") or 1


def run_label(run_id: int) -> str:
    """Return the first eight hex digits of a run id; '' for 0."""
    return f"{run_id:032x}"[:8] if run_id else ""
