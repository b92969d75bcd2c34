"""A profile as text: for each thread, the lines in which it was seen most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from rich.text import Text

from otel_torchdist.cli.profile.children import ChildProfile
from otel_torchdist.cli.profile.taking import Taken
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.world.places import user_frame

LINES_OF_THREAD: Final = 12
LEAST_SHARE: Final = 0.005


def lines_of(taken: Taken, children: list[ChildProfile], rank: int, pid: int) -> Iterator[Text]:
    """Yield the report on a rank and its children."""
    cut = ", ended early" if taken.is_cut else ""
    yield Text(f"rank {rank}, pid {pid}: {taken.count} samples in {taken.seconds:.1f} s{cut}", style="bold")
    for thread in dict.fromkeys(sampled.thread for sampled in taken.samples):
        yield from _thread_lines(taken, thread)
    for child in children:
        yield from _child_lines(child)


def _thread_lines(taken: Taken, thread: str) -> Iterator[Text]:
    places: Counter[tuple[str, str]] = Counter()
    for sampled, count in taken.samples.items():
        if sampled.thread == thread:
            places[_place(sampled.stack), sampled.operation] += count
    yield Text(f"\n{thread}")
    total = sum(places.values())  # of all threads with this name
    shown = [one for one in places.most_common(LINES_OF_THREAD) if one[1] >= LEAST_SHARE * total]
    for (place, operation), count in shown:
        yield Text(f"  {count / total:6.1%}  {place}{', ' * bool(operation)}{operation}")
    rest = total - sum(count for _, count in shown)
    if rest:
        yield Text(f"  {rest / total:6.1%}  elsewhere", style="dim")


def _place(stack: tuple[CallSiteName, ...]) -> str:
    """The innermost line of the program, and the function of a library in which it is."""
    frame, innermost = user_frame(stack), stack[0]
    if frame is None:
        return "no Python frame"
    line = f"{PurePath(frame.file).name}:{frame.line} {frame.function}"
    return line if frame == innermost else f"{line} → {innermost.function} ({PurePath(innermost.file).name})"


def _child_lines(child: ChildProfile) -> Iterator[Text]:
    yield Text(f"\nchild {child.pid}  {child.command}")
    total = sum(child.doing.values())
    for doing, count in child.doing.most_common(LINES_OF_THREAD):
        yield Text(f"  {count / total:6.1%}  {doing}")
    if child.why_not:
        yield Text(f"  {child.why_not}", style="dim")
    for line in sorted(child.stacks, key=_count, reverse=True)[:LINES_OF_THREAD]:
        yield Text(f"  {line}", style="dim")


def _count(line: str) -> int:
    number = line.rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0
