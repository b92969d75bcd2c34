"""Prints the diagnosis of a job that was not recorded."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from rich.text import Text

from otel_torchdist.cli.diagnose.report import LABEL_WIDTH, SHOWN_EACH, operation_lines, with_next_step
from otel_torchdist.cli.diagnose.texts import (
    lines_of_texts,  # ReadTexts, contradictions, lines_of_texts, read_texts, with_stacks
)
from otel_torchdist.cli.output.terminal import print_lines
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.text import have, name_ranks
from otel_torchdist.model.times import day_and_time
from otel_torchdist.runs.diagnosis.leftovers import JudgedDumps, Leftovers
from otel_torchdist.sources.flight.dump import parse_profiling_name
from otel_torchdist.sources.flight.snapshot import MomentKind

MOMENT_TEXTS: Final = {
    MomentKind.FIRST_TIMEOUT: "when the first timeout runs out: the time of the dumps is not recorded",
    MomentKind.NEWEST_TIME: "the newest time in them: the time of the dumps is not recorded",
    MomentKind.DUMPS: "the end of what they record",
}


def print_leftovers(leftovers: Leftovers) -> None:
    """Print a diagnosis."""
    print_lines(lines_of(leftovers), LABEL_WIDTH)


def lines_of(leftovers: Leftovers) -> Iterator[Text]:
    """Yield the report."""
    if leftovers.dumps is not None:
        yield from _lines_of_dumps(leftovers.dumps, leftovers.threshold_s)
    if leftovers.texts is None:
        return
    if leftovers.dumps is not None:
        yield Text()
    yield Text(leftovers.texts.title, style="bold")
    yield from lines_of_texts(leftovers.texts.judgment)


def _lines_of_dumps(dumps: JudgedDumps, threshold_s: float) -> Iterator[Text]:
    yield from _heading(dumps)
    yield Text()
    yield from _verdicts(dumps, threshold_s)
    for group in _groups_in_same_state(dumps):
        yield Text()
        yield from _rank(dumps, group)


def _heading(dumps: JudgedDumps) -> Iterator[Text]:
    unseen, size = dumps.moment.unseen, dumps.moment.world_size
    if unseen:
        yield Text(f"{name_ranks(unseen)} {have(unseen)} no dump here", style="bold yellow")
    yield Text.assemble(
        ("dumps of the flight recorder", "bold"), f", {_kind(dumps)}, of {len(dumps.dumps)} of {size} ranks"
    )
    yield Text(f"as of {day_and_time(dumps.moment_ns)}, {MOMENT_TEXTS[dumps.moment.kind]}")


def _kind(dumps: JudgedDumps) -> str:
    libraries = sorted(
        {
            parse_profiling_name(call.entry.profiling_name).library
            for condensed in dumps.dumps
            for call in condensed.calls
        }
    )
    versions = sorted({condensed.dump.version for condensed in dumps.dumps})
    library_versions = sorted({condensed.dump.library_version for condensed in dumps.dumps} - {""})
    formats = ", ".join(f"{major}.{minor}" for major, minor in versions)
    return f"{' '.join([*libraries, *library_versions]) or 'no calls'}, format {formats}"


def _verdicts(dumps: JudgedDumps, threshold_s: float) -> Iterator[Text]:
    if not dumps.verdicts:
        yield Text.assemble(("no verdict", "bold"), f"  no operation was open for {threshold_s:g} s")
        return
    for index, verdict in enumerate(dumps.verdicts):
        style = "bold white on red"
        label = Text.assemble(("verdict", style) if not index else ("  also ", style), "  ")
        yield from with_next_step(label, dumps.text_of(verdict))


def _rank(dumps: JudgedDumps, group: Sequence[RankView]) -> Iterator[Text]:
    """Describe the first of several ranks in the same state."""
    view = group[0]
    if len(group) > 1:
        ranks = [rank.rank for rank in group]
        yield Text.assemble((name_ranks(ranks), "bold"), f"  {len(ranks)} ranks do the same; the longest wait:")
    nothing = "" if view.open else "  nothing is open"
    yield Text.assemble((f"rank {view.rank}", "bold"), nothing)
    yield from operation_lines(dumps, view.open, view.last)


def _groups_in_same_state(dumps: JudgedDumps) -> list[list[RankView]]:
    """Group ranks in the same state. Groups that verdicts name come first."""
    named = {rank for verdict in dumps.verdicts for rank in verdict.ranks}
    ordered = sorted(dumps.ranks, key=lambda view: (view.rank not in named, view.rank))
    if len(ordered) <= SHOWN_EACH:
        return [[view] for view in ordered]
    groups: dict[Hashable, list[RankView]] = {}
    for view in ordered:
        last = _state_of(view.last) if view.last is not None and not view.open else None
        groups.setdefault((view.rank in named, tuple(map(_state_of, view.open)), last), []).append(view)
    return [sorted(group, key=_waiting_since) for group in groups.values()]


def _state_of(operation: OperationView) -> Hashable:
    label = operation.group.label if operation.group is not None else ""
    return operation.name, operation.operation_id.sequence, label, operation.waiting_since_ns is None


def _waiting_since(view: RankView) -> tuple[int, int]:
    since = [operation.waiting_since_ns for operation in view.open if operation.waiting_since_ns is not None]
    return min(since, default=1 << 63), view.rank
