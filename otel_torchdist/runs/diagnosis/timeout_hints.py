"""Hints on PyTorch's timeout settings for the operation of a verdict.

Hints are shown only for settings that affect the verdict, and only if the timeout is known. Defaults are those of torch
2.8 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator

from otel_torchdist.judge.verdict.earlier_verdict import is_about_failure
from otel_torchdist.judge.verdict.giving_up import backend_of, known_timeout
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.judge.verdict.wording.ends import span_of_time
from otel_torchdist.judge.world.following.baselines import LONG_NS
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.names import AtTimeout, GroupName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.times import length


def timeout_hints(verdict: Verdict) -> list[str]:
    """Return a sentence for each setting that matters to the operation of a verdict."""
    waits = [operation for _, operation in sorted(verdict.roll.waits.items()) if known_timeout(operation) is not None]
    if not waits or verdict.kind.traits.is_final or is_about_failure(verdict):
        return []
    # The operations of one verdict share a group. The operation with the shortest timeout ends first.
    earliest = min(waits, key=lambda operation: _group_of(operation).timeout_ms)
    group_name = _group_of(earliest)
    label = earliest.group.label if earliest.group is not None else ""
    hints = [_timeout_hint(group_name, label, waits)] if _may_only_be_late(verdict) else []
    return [*hints, *_nccl_hints(group_name, verdict)] if backend_of(group_name) == "NCCL" else hints


def _may_only_be_late(verdict: Verdict) -> bool:
    """Return whether the operation may still complete, so that a longer timeout can be the cure."""
    if verdict.doubt is Doubt.CYCLE:
        return False
    return verdict.kind.traits.may_only_be_late


def _group_of(operation: OperationView) -> GroupName:
    group_name = known_timeout(operation)
    assert group_name is not None
    return group_name


def _timeout_hint(group_name: GroupName, label: str, waits: list[OperationView]) -> str:
    longest = max(waits, key=lambda operation: operation.longest_ns)
    timeout_s = group_name.timeout_ms / 1e3
    where = f" in {describe_frame(longest.call_site)}" if longest.call_site is not None else ""
    took = (
        f"took {length(longest.longest_ns / 1e9)}"
        if longest.longest_ns
        else f"took less than {LONG_NS // 1_000_000} ms"
    )
    return (
        f"the timeout of {label} is {span_of_time(timeout_s)}; the longest wait before this one{where} {took} "
        "(timeout= of init_process_group and new_group; it must exceed every healthy wait)"
    )


def _nccl_hints(group_name: GroupName, verdict: Verdict) -> Iterator[str]:
    match group_name.at_timeout:
        case AtTimeout.RAISES:
            yield (
                "TORCH_NCCL_BLOCKING_WAIT is set: a wait blocks the host and raises at the timeout, regardless of "
                "TORCH_NCCL_ASYNC_ERROR_HANDLING; an operation without a wait has no timeout"
            )
        case AtTimeout.ABORTS:
            yield (
                "TORCH_NCCL_ASYNC_ERROR_HANDLING is 2: at the timeout the operation is aborted and the process goes on "
                "with what is in its tensors; 3, the default, ends it, so that a launcher can start it again"
            )
        case AtTimeout.NOTHING:
            yield (
                "TORCH_NCCL_ASYNC_ERROR_HANDLING is 0: at the timeout nothing happens; 3, the default, ends the "
                "process, so that a launcher can start it again"
            )
        case AtTimeout.ENDS | AtTimeout.UNKNOWN:
            pass
    if _holds_up_watchdog(verdict):
        yield (
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (480): where native code holds the GIL or a CUDA call does not return, "
            "NCCL's watchdog may be stuck as well; its monitor ends the process after that time, unless "
            "TORCH_NCCL_ENABLE_MONITORING is 0"
        )
    if _writes_record(group_name.at_timeout) and verdict.kind.traits.is_inside_backend:
        yield (
            "TORCH_NCCL_DUMP_ON_TIMEOUT (1), TORCH_FR_BUFFER_SIZE (2000), TORCH_FR_DUMP_TEMP_FILE: at the timeout "
            "PyTorch writes its flight recorder there, which otel-torchdist diagnose reads"
        )
    if verdict.kind is VerdictKind.UNKNOWN:
        yield "TORCH_NCCL_DESYNC_DEBUG=1 makes NCCL report ranks that are out of step, in a rerun and not in production"


def _writes_record(at_timeout: AtTimeout) -> bool:
    """Return whether NCCL writes its flight recorder at the timeout."""
    match at_timeout:
        case AtTimeout.ENDS | AtTimeout.ABORTS:
            return True
        case AtTimeout.RAISES | AtTimeout.NOTHING | AtTimeout.UNKNOWN:
            return False


def _holds_up_watchdog(verdict: Verdict) -> bool:
    is_frozen = any(place.frozen_for_ns is not None for place in verdict.places.values())
    return is_frozen or verdict.kind is VerdictKind.DEVICE
