"""Findings on slow ranks, nodes and stages, from the critical path that `agent/path_watch` computes."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.judge.stall.attributes import of_frame, of_group
from otel_torchdist.judge.verdict.wording.machine import describe_slow_rank
from otel_torchdist.judge.verdict.wording.sentence import with_short_start
from otel_torchdist.model.reports.finding import Finding, FindingOver, JudgedWorld, PathLengths, Severity, SlowPart
from otel_torchdist.telemetry import semconv


def finding_of(part: SlowPart, judged: JudgedWorld) -> Finding:
    """Return the finding on a slow part."""
    world, ranks = judged.world, part.ranks
    groups = (view.groups.get(part.group) for view in world.in_order)
    group = next((group for group in groups if group is not None), None)
    return Finding(
        kind=part.kind,
        severity=Severity.WARNING,
        incident=judged.incident(f"{part.kind.value} {ranks} {world.taken_ns}"),
        ranks=ranks,
        group=part.group,
        operation=part.operation,
        text=with_short_start(part.text + (describe_slow_rank(world, ranks[0]) if len(ranks) == 1 else "")),
        world=world,
        attributes={
            semconv.VERDICT_COVERAGE: f"{len(part.compared)}/{len(world.ranks)}",
            semconv.SLOW_EXCESS: part.excess_s,
            semconv.SLOW_GAIN: part.gain_s,
            semconv.SLOW_GAIN_SHARE: part.gain_s / part.step_s,
            **of_frame(part.call_site),
            **({semconv.OPERATION: part.operation} if part.operation else {}),
            **(of_group(group) if group is not None else {}),
        },
    )


def over_of(part: SlowPart, run: int) -> FindingOver:
    """Return the end of the finding on a slow part."""
    return FindingOver(part.kind, run, part.ranks, part.group)


@dataclass(frozen=True, slots=True)
class PathMeasured:
    """The critical path of the newest steps.

    Attributes:
        run: 128-bit id.
    """

    run: int
    lengths: PathLengths
