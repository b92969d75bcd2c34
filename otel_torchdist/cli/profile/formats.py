"""Formats of a profile: text for people, folded stacks for flame graphs, and speedscope's JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

from rich.text import Text

from otel_torchdist.cli.profile.children import ChildProfile
from otel_torchdist.cli.profile.taking import SampledRank, StackSample
from otel_torchdist.judge.world.places import user_frame
from otel_torchdist.model.names import CallSiteName

MAX_LINES: Final = 12
"""Upper bound on the lines of a thread or child."""
MIN_SHARE: Final = 0.005
"""Lines with a smaller share of the samples are summed up as `elsewhere`."""


def lines_of(sampled_rank: SampledRank, children: list[ChildProfile], rank: int, pid: int) -> Iterator[Text]:
    """Yield the report on a rank and its children."""
    cut = ", ended early" if sampled_rank.is_cut else ""
    yield Text(
        f"rank {rank}, pid {pid}: {sampled_rank.count} samples in {sampled_rank.seconds:.1f} s{cut}", style="bold"
    )
    for thread in dict.fromkeys(sampled.thread for sampled in sampled_rank.samples):
        yield from _thread_lines(sampled_rank, thread)
    for child in children:
        yield from _child_lines(child)


def _thread_lines(sampled_rank: SampledRank, thread: str) -> Iterator[Text]:
    counts: Counter[tuple[str, str]] = Counter()
    for sampled, count in sampled_rank.samples.items():
        if sampled.thread == thread:
            counts[_line_of(sampled.stack), sampled.operation] += count
    yield Text(f"\n{thread}")
    total = sum(counts.values())  # of all threads with this name
    shown = [entry for entry in counts.most_common(MAX_LINES) if entry[1] >= MIN_SHARE * total]
    for (line, operation), count in shown:
        yield Text(f"  {count / total:6.1%}  {line}{', ' * bool(operation)}{operation}")
    rest = total - sum(count for _, count in shown)
    if rest:
        yield Text(f"  {rest / total:6.1%}  elsewhere", style="dim")


def _line_of(stack: tuple[CallSiteName, ...]) -> str:
    """Return the innermost line of user code, and the library function that it calls."""
    frame, innermost = user_frame(stack), stack[0]
    if frame is None:
        return "no Python frame"
    line = f"{PurePath(frame.file).name}:{frame.line} {frame.function}"
    return line if frame == innermost else f"{line} → {innermost.function} ({PurePath(innermost.file).name})"


def _child_lines(child: ChildProfile) -> Iterator[Text]:
    yield Text(f"\nchild {child.pid}  {child.command}")
    total = sum(child.doing.values())
    for doing, count in child.doing.most_common(MAX_LINES):
        yield Text(f"  {count / total:6.1%}  {doing}")
    if child.why_not:
        yield Text(f"  {child.why_not}", style="dim")
    for line in sorted(child.stacks, key=_count, reverse=True)[:MAX_LINES]:
        yield Text(f"  {line}", style="dim")


def _count(line: str) -> int:
    number = line.rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0


_SPEEDSCOPE: Final = "https://www.speedscope.app/file-format-schema.json"


def folded(sampled_rank: SampledRank) -> Iterator[str]:
    """Yield a line for each stack: frames from outermost to innermost, separated by semicolons, and a count."""
    for sampled, count in sorted(sampled_rank.samples.items(), key=lambda entry: (entry[0].thread, -entry[1])):
        yield f"{';'.join(_clean(part) for part in _frames(sampled))} {count}"


def _frames(sampled: StackSample) -> list[str]:
    """Return thread, frames and operation, outermost first."""
    frames = [f"{frame.function} ({PurePath(frame.file).name}:{frame.line})" for frame in reversed(sampled.stack)]
    return [sampled.thread, *frames, *([f"[{sampled.operation}]"] if sampled.operation else [])]


def _clean(part: str) -> str:
    return part.replace(";", ",").replace("\n", " ")


def speedscope(sampled_rank: SampledRank, name: str) -> dict[str, Any]:
    """Return a speedscope document with a profile for each thread, weighted in seconds."""
    frames: dict[CallSiteName | str, int] = {}
    threads: dict[str, tuple[list[list[int]], list[float]]] = {}
    sample_s = sampled_rank.seconds / max(sampled_rank.count - 1, 1)
    for sampled, count in sampled_rank.samples.items():
        stack: list[CallSiteName | str] = [*reversed(sampled.stack)]
        stack += [f"[{sampled.operation}]"] if sampled.operation else []
        samples, weights = threads.setdefault(sampled.thread, ([], []))
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(round(count * sample_s, 6))
    return {
        "$schema": _SPEEDSCOPE,
        "name": name,
        "exporter": "otel-torchdist",
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": thread,
                "unit": "seconds",
                "startValue": 0,
                "endValue": round(sum(weights), 6),
                "samples": samples,
                "weights": weights,
            }
            for thread, (samples, weights) in threads.items()
        ],
    }


def _frame(frame: CallSiteName | str) -> dict[str, Any]:
    if isinstance(frame, str):
        return {"name": frame}
    return {"name": frame.function, "file": frame.file, "line": frame.line}
