"""The critical path for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from otel_torchdist.analysis.clocks.offsets import ClockOffset
from otel_torchdist.analysis.critical_path.critical_path import CriticalPath, PathKind, RankTime
from otel_torchdist.analysis.critical_path.result import call_of, describe_doing, left_out, sentence
from otel_torchdist.cli.histories import Source
from otel_torchdist.model.naming import name_ranks
from otel_torchdist.model.units import duration, share

SHOWN_RANKS: Final = 16
SHOWN_PIECES: Final = 10
_INDENT: Final = " " * 4


def lines_of_path(found: CriticalPath, source: Source) -> Iterator[Text]:
    """Describe the steps, what would make them shorter, and where their time goes."""
    yield Text(source.headline)
    yield Text()
    yield Text(headline_of(found), style="bold")
    yield from (Text(left_out(step, found.group_names)) for step in found.longest)
    yield from _causes(found)
    yield from _pieces(found)
    yield from _ranks(found)
    yield from _clocks(found)
    if found.notes:
        yield Text()
    yield from (Text(note, style="yellow") for note in found.notes)


def headline_of(found: CriticalPath) -> str:
    """Say how long a step takes, and how much of the path is computing and transfer."""
    kinds = ", ".join(f"{share(found.by_kind[kind], found.path_ns) or '0%'} {kind.value}" for kind in PathKind)
    if not found.has_steps:
        return f"{duration(found.path_ns)} from the first known call to the last: {kinds}"
    first, last = found.steps[0].step, found.steps[-1].step
    count = len(found.steps)
    steps = f"step {first}" if count == 1 else f"{count} steady steps, {first} to {last}"
    each = "" if count == 1 else " at the median"
    return f"{steps}: {duration(found.step_ns)}{each}; on the critical path {kinds}"


def _causes(found: CriticalPath) -> Iterator[Text]:
    if not found.has_steps:
        return
    yield Text()
    if not found.causes:
        yield Text("no rank, line or transfer stands out: without any one of them steps would hardly be shorter")
        return
    yield Text("a step would be shorter at most by", style="bold")
    for cause in found.causes:
        gain = f"{duration(cause.gain_ns):>8}  {share(cause.gain_ns, found.path_ns):>4}"
        yield Text(f"{_INDENT}{gain}  without this: {sentence(cause, found.group_names)}")


def _pieces(found: CriticalPath) -> Iterator[Text]:
    yield Text()
    yield Text("the critical path, by what happens on it", style="bold")
    yield from (Text(f"{_INDENT}{line}") for line in pieces_of(found, SHOWN_PIECES))


def pieces_of(found: CriticalPath, most: int) -> Iterator[str]:
    """Describe the longest pieces of the path, and how long the others are together."""
    for (kind, rank, label), length_ns in list(found.by_label.items())[:most]:
        is_computing = kind is PathKind.COMPUTING
        what = f"{describe_doing(found.spent.get((rank, label), {}))} before" if is_computing else "transfer of"
        yield (
            f"{duration(length_ns):>8}  {share(length_ns, found.path_ns):>4}  "
            f"rank {rank}, {what} {call_of(label, found.group_names)}"
        )
    rest = list(found.by_label.values())[most:]
    if rest:
        yield f"{duration(sum(rest)):>8}  {share(sum(rest), found.path_ns):>4}  {len(rest)} others"


def _ranks(found: CriticalPath) -> Iterator[Text]:
    ranks = sorted(found.by_rank, key=lambda one: (-one.on_path_ns, one.rank))[:SHOWN_RANKS]
    yield Text()
    yield Text("the time of a step, by rank", style="bold")
    yield Text(f"{_INDENT}rank  on the path  computing   waiting  transfer  waits longest for")
    for one in sorted(ranks, key=lambda one: one.rank):
        yield Text(
            f"{_INDENT}{one.rank:>4}  {duration(one.on_path_ns):>11}  {duration(one.computing_ns):>9}  "
            f"{duration(one.waiting_ns):>8}  {duration(one.transfer_ns):>8}  {_longest(one)}".rstrip()
        )
    hidden = len(found.by_rank) - len(ranks)
    if hidden:
        yield Text(f"{_INDENT}{hidden} ranks that are less on the path are left out")


def _longest(one: RankTime) -> str:
    if not one.waits_for:
        return ""
    rank, waited_ns = one.waits_for[0]
    return f"rank {rank}, {duration(waited_ns)}"


def _clocks(found: CriticalPath) -> Iterator[Text]:
    others = [clock for clock in found.clocks[1:] if clock.bound_ns is not None]
    if not others:
        return
    yield Text()
    yield Text("clocks of nodes, by the operations in which their ranks meet", style="bold")
    for clock in others:
        yield Text(f"{_INDENT}{_clock(clock)}")


def _clock(clock: ClockOffset) -> str:
    bound = duration(clock.bound_ns)
    return f"{name_ranks(clock.ranks)}: ± {bound} at most, from {clock.meetings:,} operations"
