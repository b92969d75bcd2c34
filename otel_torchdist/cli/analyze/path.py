"""The report on the critical path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from otel_torchdist.analysis.clocks.offsets import ClockOffset
from otel_torchdist.analysis.critical_path.critical_path import CriticalPath, PathKind, RankTime
from otel_torchdist.analysis.critical_path.wording import (
    describe_call,
    describe_cause,
    describe_doing,
    describe_outlier,
)
from otel_torchdist.model.text import duration, name_ranks, share
from otel_torchdist.runs.histories import Source

SHOWN_RANKS: Final = 16
SHOWN_PIECES: Final = 10
_INDENT: Final = " " * 4


def lines_of_path(path: CriticalPath, source: Source) -> Iterator[Text]:
    """Yield the report: the steps, causes that lengthen them, and the distribution of their time."""
    yield Text(source.headline)
    yield Text()
    yield Text(headline_of(path), style="bold")
    yield from (Text(describe_outlier(step, path.group_names)) for step in path.longest)
    yield from _causes(path)
    yield from _pieces(path)
    yield from _ranks(path)
    yield from _clocks(path)
    if path.notes:
        yield Text()
    yield from (Text(note, style="yellow") for note in path.notes)


def headline_of(path: CriticalPath) -> str:
    """Describe the length of a step, and the shares of computing and transfer on the path."""
    kinds = ", ".join(f"{share(path.by_kind[kind], path.path_ns) or '0%'} {kind.value}" for kind in PathKind)
    if not path.has_steps:
        return f"{duration(path.path_ns)} from the first known call to the last: {kinds}"
    first, last = path.steps[0].step, path.steps[-1].step
    count = len(path.steps)
    steps = f"step {first}" if count == 1 else f"{count} steady steps, {first} to {last}"
    suffix = "" if count == 1 else " at the median"
    return f"{steps}: {duration(path.step_ns)}{suffix}; on the critical path {kinds}"


def _causes(path: CriticalPath) -> Iterator[Text]:
    if not path.has_steps:
        return
    yield Text()
    if not path.causes:
        yield Text("no rank, line or transfer stands out: removing any one of them would hardly shorten a step")
        return
    yield Text("a step would be shorter at most by", style="bold")
    for cause in path.causes:
        gain = f"{duration(cause.gain_ns):>8}  {share(cause.gain_ns, path.path_ns):>4}"
        yield Text(f"{_INDENT}{gain}  without this: {describe_cause(cause, path.group_names)}")


def _pieces(path: CriticalPath) -> Iterator[Text]:
    yield Text()
    yield Text("the critical path, by what happens on it", style="bold")
    yield from (Text(f"{_INDENT}{line}") for line in pieces_of(path, SHOWN_PIECES))


def pieces_of(path: CriticalPath, max_pieces: int) -> Iterator[str]:
    """Describe the longest pieces of the path, and the total length of the others."""
    for (kind, rank, label), length_ns in list(path.by_label.items())[:max_pieces]:
        is_computing = kind is PathKind.COMPUTING
        doing = f"{describe_doing(path.spent.get((rank, label), {}))} before" if is_computing else "transfer of"
        yield (
            f"{duration(length_ns):>8}  {share(length_ns, path.path_ns):>4}  "
            f"rank {rank}, {doing} {describe_call(label, path.group_names)}"
        )
    rest_ns = list(path.by_label.values())[max_pieces:]
    if rest_ns:
        yield f"{duration(sum(rest_ns)):>8}  {share(sum(rest_ns), path.path_ns):>4}  {len(rest_ns)} others"


def _ranks(path: CriticalPath) -> Iterator[Text]:
    ranks = sorted(path.by_rank, key=lambda rank: (-rank.on_path_ns, rank.rank))[:SHOWN_RANKS]
    yield Text()
    yield Text("the time of a step, by rank", style="bold")
    yield Text(f"{_INDENT}rank  on the path  computing   waiting  transfer  waits longest for")
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        yield Text(
            f"{_INDENT}{rank.rank:>4}  {duration(rank.on_path_ns):>11}  {duration(rank.computing_ns):>9}  "
            f"{duration(rank.waiting_ns):>8}  {duration(rank.transfer_ns):>8}  {_longest(rank)}".rstrip()
        )
    hidden = len(path.by_rank) - len(ranks)
    if hidden:
        yield Text(f"{_INDENT}{hidden} ranks with less time on the path are left out")


def _longest(time: RankTime) -> str:
    if not time.waits_for:
        return ""
    rank, waited_ns = time.waits_for[0]
    return f"rank {rank}, {duration(waited_ns)}"


def _clocks(path: CriticalPath) -> Iterator[Text]:
    compared = [clock for clock in path.clocks[1:] if clock.bound_ns is not None]
    if not compared:
        return
    yield Text()
    yield Text("clocks of nodes, by the operations in which their ranks meet", style="bold")
    for clock in compared:
        yield Text(f"{_INDENT}{_clock(clock)}")


def _clock(clock: ClockOffset) -> str:
    bound = duration(clock.bound_ns)
    return f"{name_ranks(clock.ranks)}: ± {bound} at most, from {clock.meetings:,} operations"
