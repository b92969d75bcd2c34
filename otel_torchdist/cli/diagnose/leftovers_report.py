"""Prints a diagnosis of leftovers for people.

Nothing is said of what dumps do not show: whether processes live, when their threads last ran, on which hosts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from otel_torchdist.cli.diagnose.leftovers import JudgedDumps, Leftovers
from otel_torchdist.cli.diagnose.operation_lines import operation_lines
from otel_torchdist.cli.diagnose.texts import lines_of_texts
from otel_torchdist.cli.output.text import day_and_time
from otel_torchdist.flight.dump import called_name
from otel_torchdist.flight.snapshot import MomentKind
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.naming import have, name_ranks

SHOWN_EACH: Final = 8
"""A report on at most this many ranks shows each of them separately."""
MOMENTS: Final = {
    MomentKind.FIRST_TIMEOUT: "when the first timeout runs out: the time of the dumps is not recorded",
    MomentKind.NEWEST_TIME: "the newest time in them: the time of the dumps is not recorded",
    MomentKind.DUMPS: "the end of what they record",
}


def print_leftovers(found: Leftovers, console: Console) -> None:
    """Print a diagnosis."""
    for line in lines_of(found):
        console.print(line, soft_wrap=True, highlight=False)


def lines_of(found: Leftovers) -> Iterator[Text]:
    """Yield the report."""
    if found.dumps is not None:
        yield from _of_dumps(found.dumps, found.threshold_s)
    if found.texts is None:
        return
    if found.dumps is not None:
        yield Text()
    yield Text(found.texts.title, style="bold")
    yield from lines_of_texts(found.texts.said)


def _of_dumps(dumps: JudgedDumps, threshold_s: float) -> Iterator[Text]:
    yield from _heading(dumps)
    yield Text()
    yield from _verdicts(dumps, threshold_s)
    for alike in _crowds(dumps):
        yield Text()
        yield from _rank(dumps, alike)


def _heading(dumps: JudgedDumps) -> Iterator[Text]:
    unseen, size = dumps.moment.unseen, dumps.moment.world_size
    if unseen:
        yield Text(f"{name_ranks(unseen)} {have(unseen)} no dump here", style="bold yellow")
    yield Text.assemble(
        ("dumps of the flight recorder", "bold"), f", {_kind(dumps)}, of {len(dumps.dumps)} of {size} ranks"
    )
    yield Text(f"as of {day_and_time(dumps.moment_ns)}, {MOMENTS[dumps.moment.kind]}")


def _kind(dumps: JudgedDumps) -> str:
    libraries = sorted({called_name(call.entry.profiling_name).library for one in dumps.dumps for call in one.calls})
    versions = sorted({one.dump.version for one in dumps.dumps})
    built = sorted({one.dump.library_version for one in dumps.dumps} - {""})
    formats = ", ".join(f"{major}.{minor}" for major, minor in versions)
    return f"{' '.join([*libraries, *built]) or 'no calls'}, format {formats}"


def _verdicts(dumps: JudgedDumps, threshold_s: float) -> Iterator[Text]:
    if not dumps.verdicts:
        yield Text.assemble(("no verdict", "bold"), f"  no operation was open for {threshold_s:g} s")
        return
    for nth, verdict in enumerate(dumps.verdicts):
        style = "bold white on red"
        yield Text.assemble(("verdict", style) if not nth else ("  also ", style), f"  {dumps.text_of(verdict)}")


def _rank(dumps: JudgedDumps, alike: Sequence[RankView]) -> Iterator[Text]:
    """Describe the first of several ranks that do the same."""
    view = alike[0]
    if len(alike) > 1:
        ranks = [one.rank for one in alike]
        yield Text.assemble((name_ranks(ranks), "bold"), f"  {len(ranks)} ranks do the same; the longest wait:")
    nothing = "" if view.open else "  nothing is open"
    yield Text.assemble((f"rank {view.rank}", "bold"), nothing)
    yield from operation_lines(dumps, view.open, view.last)


def _crowds(dumps: JudgedDumps) -> list[list[RankView]]:
    """Group ranks that do the same; those that verdicts name come first."""
    named = {rank for verdict in dumps.verdicts for rank in verdict.ranks}
    ordered = sorted(dumps.ranks, key=lambda view: (view.rank not in named, view.rank))
    if len(ordered) <= SHOWN_EACH:
        return [[view] for view in ordered]
    found: dict[Hashable, list[RankView]] = {}
    for view in ordered:
        last = _shown_alike(view.last) if view.last is not None and not view.open else None
        found.setdefault((view.rank in named, tuple(map(_shown_alike, view.open)), last), []).append(view)
    return [sorted(alike, key=_waiting_since) for alike in found.values()]


def _shown_alike(operation: OperationView) -> Hashable:
    label = operation.group.label if operation.group is not None else ""
    return operation.name, operation.operation_id.sequence, label, operation.waiting_since_ns is None


def _waiting_since(view: RankView) -> tuple[int, int]:
    since = [one.waiting_since_ns for one in view.open if one.waiting_since_ns is not None]
    return min(since, default=1 << 63), view.rank
