"""Sentences about the critical path: its causes, its pieces, and the steps that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, PathKind, StepPath
from otel_torchdist.analysis.critical_path.timelines import Label
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.text import duration, name_ranks, readable, share


def describe_cause(cause: Cause, group_names: Mapping[str, str]) -> str:
    """Describe a cause: `rank 2 computes 5.48 ms longer than its peers before all_reduce at step (train.py:16)`.

    The sentence names the main kind of time: `rank 3 waits 52.1 ms longer for data than its peers`.
    """
    ranks, excess = name_ranks(cause.ranks), duration(cause.excess_ns)
    match cause.kind:
        case CauseKind.LINE:
            call = describe_call(cause.label, group_names)
            return f"{ranks} {_spends(cause)} than its peers before {call}{_in_all(cause)}"
        case CauseKind.RANK:
            return f"{ranks} {_spends(cause)} than its peers before several calls{_in_all(cause)}"
        case CauseKind.NODE:
            return f"{ranks} on {readable(cause.host)} {_spends(cause)} than their peers on other nodes{_in_all(cause)}"
        case CauseKind.STAGE:
            is_or_are, compute = ("is", "computes") if len(cause.ranks) == 1 else ("are", "compute")
            return f"{ranks}, which {is_or_are} one stage of a pipeline, {compute} {excess} longer than other stages"
        case CauseKind.TRANSFER:
            return f"{describe_call(cause.label, group_names)} takes {excess} of the path after all ranks have arrived"


_MAIN_SHARE: Final = 0.8
"""If the main kind of time makes up at least this share, the others are not mentioned."""


def _spends(cause: Cause) -> str:
    """Describe the excess by its main kind of time: `waits 52.1 ms longer for data`."""
    s = "" if len(cause.ranks) > 1 else "s"
    time = f"{duration(cause.kinds.get(cause.main_kind, cause.excess_ns))} longer"
    match cause.main_kind:
        case TimeKind.COMPUTING:
            return f"compute{s} {duration(cause.excess_ns)} longer"
        case TimeKind.DATA:
            return f"wait{s} {time} for data"
        case TimeKind.CHECKPOINT:
            return f"spend{s} {time} in checkpoints"
        case TimeKind.OPTIMIZER:
            return f"spend{s} {time} in the optimizer's step"
        case TimeKind.BACKWARD:
            return f"compute{s} {time} in the backward pass"
        case TimeKind.REMOTE_CALL:
            return f"wait{s} {time} for remote procedure calls"


def _in_all(cause: Cause) -> str:
    """Return a clause with the total excess, unless the main kind of time makes up most of it."""
    main = cause.main_kind
    if main is TimeKind.COMPUTING or cause.kinds[main] >= _MAIN_SHARE * cause.excess_ns:
        return ""
    return f", and take{'' if len(cause.ranks) > 1 else 's'} {duration(cause.excess_ns)} longer in all"


_DOING: Final = {
    TimeKind.DATA: "waiting for data",
    TimeKind.CHECKPOINT: "in a checkpoint",
    TimeKind.OPTIMIZER: "in the optimizer's step",
    TimeKind.BACKWARD: "in the backward pass",
    TimeKind.REMOTE_CALL: "waiting for remote procedure calls",
    TimeKind.COMPUTING: "computing",
}


def describe_doing(spent: Mapping[TimeKind, int]) -> str:
    """Describe the computing before a call: `waiting for data`. Add durations if there are several kinds of time."""
    total_ns = sum(spent.values())
    main = max(spent, key=spent.__getitem__, default=TimeKind.COMPUTING)
    rest = [kind for kind in spent if kind is not main and spent[kind] >= (1 - _MAIN_SHARE) * total_ns]
    if not rest:
        return _DOING[main]
    kinds = sorted([main, *rest], key=lambda kind: -spent[kind])
    return ", ".join(f"{_DOING[kind]} ({duration(spent[kind])})" for kind in kinds)


def describe_outlier(step: StepPath, group_names: Mapping[str, str]) -> str:
    """Name an outlier: `step 8 is left out of the steady steps because it took 20.0 s: 99% of that is rank 2, …`."""
    took = f"step {step.step} is left out of the steady steps because it took {duration(step.duration_ns)}"
    piece = step.longest_piece
    if piece is None:
        return took
    doing = f"{describe_doing(step.longest_spent)} before" if piece.kind is PathKind.COMPUTING else "transfer of"
    part = share(piece.duration_ns, step.duration_ns)
    return f"{took}: {part} of that is rank {piece.rank}, {doing} {describe_call(piece.label, group_names)}"


def describe_call(label: Label | None, group_names: Mapping[str, str]) -> str:
    """Name a call: `all_reduce in mesh_dp at step (train.py:16)`; `the end of the step` for None."""
    if label is None:
        return "the end of the step"
    group = group_names.get(label.group)
    within = f" in {readable(group)}" if group else ""
    site = label.site
    if site is None:
        return f"{label.operation}{within}"
    return f"{label.operation}{within} at {readable(site.function)} ({readable(PurePath(site.file).name)}:{site.line})"
