"""The critical path as JSON, in the document of an analysis.

Durations are nanoseconds of an average steady step.

- `steps`: `first`, `last` (null where no steps are recorded), `count`, `unsteady` (left out, because they took more
  than twice the median), `median_ns`, and `longest`: of the longest of those left out `step`, `ns` and a `text`.
- `computing_ns` and `transfer_ns` of the critical path, and its `pieces`: `kind`, `rank`, `call`, `ns`, and
  `spent`: nanoseconds of the computing by what the rank does (data, checkpoint, optimizer, backward, remote call,
  computing). The
  call (`operation`, `group`, `group_name`, `function`, `file`, `line`; null for the end of the step) is what the rank
  computed before, or what transferred.
- `ranks`: of each `rank`: `host`, `on_path_ns`, `computing_ns`, `waiting_ns`, `transfer_ns`, and `waits_for`: `rank`,
  `ns`.
- `causes`: `kind` (line, rank, node, stage, transfer), `ranks`, `host`, `call`, `excess_ns`, `gain_ns` (at most),
  `spent`: what the excess is spent on, likewise (a rank may spend less on some), `text`.
- `clocks`: of each clock the `ranks`, `offset_ns` to that of the first, `bound_ns` (null: by wall clocks), `meetings`.
- `notes`: what could not be taken into account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_torchdist.critical_path.model import CriticalPath, PathKind
from otel_torchdist.critical_path.timelines import Label
from otel_torchdist.critical_path.wording import left_out, sentence
from otel_torchdist.model.time_kinds import TimeKind


def path_document(found: CriticalPath) -> dict[str, Any]:
    """Build the document."""
    return {
        "steps": {
            "first": found.steps[0].step,
            "last": found.steps[-1].step,
            "count": len(found.steps),
            "unsteady": found.unsteady,
            "median_ns": found.step_ns,
            "longest": [
                {"step": step.step, "ns": step.duration_ns, "text": left_out(step, found.group_names)}
                for step in found.longest
            ],
        },
        "computing_ns": found.by_kind[PathKind.COMPUTING],
        "transfer_ns": found.by_kind[PathKind.TRANSFER],
        "pieces": [
            {
                "kind": kind.value,
                "rank": rank,
                "call": _call(label, found),
                "ns": length_ns,
                "spent": _spent(found.spent.get((rank, label), {}) if kind is PathKind.COMPUTING else {}),
            }
            for (kind, rank, label), length_ns in found.by_label.items()
        ],
        "ranks": [
            {
                "rank": one.rank,
                "host": one.host or None,
                "on_path_ns": one.on_path_ns,
                "computing_ns": one.computing_ns,
                "waiting_ns": one.waiting_ns,
                "transfer_ns": one.transfer_ns,
                "waits_for": [{"rank": rank, "ns": waited_ns} for rank, waited_ns in one.waits_for],
            }
            for one in found.by_rank
        ],
        "causes": [
            {
                "kind": cause.kind.value,
                "ranks": list(cause.ranks),
                "host": cause.host or None,
                "call": _call(cause.label, found),
                "excess_ns": cause.excess_ns,
                "gain_ns": cause.gain_ns,
                "spent": _spent(cause.kinds),
                "text": sentence(cause, found.group_names),
            }
            for cause in found.causes
        ],
        "clocks": [
            {
                "ranks": list(clock.ranks),
                "offset_ns": clock.offset_ns,
                "bound_ns": clock.bound_ns,
                "meetings": clock.meetings,
            }
            for clock in found.clocks
        ],
        "notes": list(found.notes),
    }


def _spent(kinds: Mapping[TimeKind, int]) -> dict[str, int]:
    return {kind.value: kinds[kind] for kind in TimeKind if kinds.get(kind)}


def _call(label: Label | None, found: CriticalPath) -> dict[str, Any] | None:
    if label is None:
        return None
    site = label.site
    return {
        "operation": label.operation,
        "group": label.group or None,
        "group_name": found.group_names.get(label.group),
        "function": site.function if site is not None else None,
        "file": site.file if site is not None else None,
        "line": site.line if site is not None else None,
    }
