"""Causes in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from otel_torchdist.critical_path.model import Cause, CauseKind, PathKind, StepPath
from otel_torchdist.critical_path.timelines import Label
from otel_torchdist.naming import name_ranks, readable
from otel_torchdist.units import duration, share


def sentence(cause: Cause, group_names: Mapping[str, str]) -> str:
    """Say what a cause is: `rank 2 computes 5.48 ms longer than its peers before all_reduce at step (train.py:16)`."""
    ranks, excess = name_ranks(cause.ranks), duration(cause.excess_ns)
    plural = len(cause.ranks) > 1
    if cause.kind is CauseKind.TRANSFER:
        return f"{call_of(cause.label, group_names)} takes {excess} of the path after all have arrived"
    if cause.kind is CauseKind.NODE:
        return f"{ranks} on {readable(cause.host)} compute {excess} longer than their peers on other nodes"
    if cause.kind is CauseKind.STAGE:
        verb = "which are" if plural else "which is"
        return f"{ranks}, {verb} one stage of a pipeline, compute{'s' * (not plural)} {excess} longer than other stages"
    where = f"before {call_of(cause.label, group_names)}" if cause.kind is CauseKind.LINE else "before several calls"
    return f"{ranks} computes {excess} longer than its peers {where}"


def left_out(step: StepPath, group_names: Mapping[str, str]) -> str:
    """Say what took so long in a step that is not steady: `step 8 took 20.0 s: 99% of that is rank 2, computing …`."""
    took = f"step {step.step} is left out, it took {duration(step.duration_ns)}"
    piece = step.longest_piece
    if piece is None:
        return took
    what = "computing before" if piece.kind is PathKind.COMPUTING else "transfer of"
    part = share(piece.duration_ns, step.duration_ns)
    return f"{took}: {part} of that is rank {piece.rank}, {what} {call_of(piece.label, group_names)}"


def call_of(label: Label | None, group_names: Mapping[str, str]) -> str:
    """Name a call: `all_reduce in mesh_dp at step (train.py:16)`; `the end of the step` for None."""
    if label is None:
        return "the end of the step"
    group = group_names.get(label.group)
    within = f" in {readable(group)}" if group else ""
    site = label.site
    if site is None:
        return f"{label.operation}{within}"
    return f"{label.operation}{within} at {readable(site.function)} ({readable(PurePath(site.file).name)}:{site.line})"
