"""From the critical paths of a run, one after the other, to what is slow in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, CriticalPath
from otel_torchdist.analysis.critical_path.result import sentence
from otel_torchdist.model.finding import FindingKind, Gain, PathLengths, SlowPart
from otel_torchdist.model.units import duration, share

LEAST_SHARE: Final = 0.1
"""Share of a step that would be gained, at least; the same as for stragglers."""
HELD: Final = 3
"""Reported once found this many times in a row, and gone once not found this many times in a row. Of ranks that differ
by chance alone, one is found in about one path in a hundred."""
HELD_S: Final = 30.0
"""And for so long: on a busy machine one rank may get less of the processors for several seconds."""
MAX_REPORTED: Final = 64
"""Of a run over its whole lifetime; more would add no information."""
MOST_RANKS: Final = 16

_Key = tuple[FindingKind, tuple[int, ...]]


class SlowParts:
    """What is slow in one run.

    Attributes:
        gone: What was reported, and has not been found in the last paths.
    """

    def __init__(self, held_s: float = HELD_S) -> None:
        """Know nothing yet; report what has been found for so many seconds."""
        self._held_s = held_s
        self._found: dict[_Key, _Held] = {}
        self._missed: dict[_Key, int] = {}
        self._standing: dict[_Key, SlowPart] = {}
        self._reported = 0
        self.gone: list[SlowPart] = []

    def update(self, parts: Iterable[SlowPart], now_s: float) -> list[SlowPart]:
        """Take what is slow on the next path.

        Args:
            parts: What is slow.
            now_s: Monotonic time.

        Returns:
            What is to be reported now.
        """
        by_key = {(part.kind, part.ranks): part for part in parts}
        self._found = {key: self._found.get(key, _Held(0, now_s)).again() for key in by_key}
        self._missed = {key: self._missed.get(key, 0) + 1 for key in self._standing.keys() - by_key.keys()}
        self.gone = [self._standing.pop(key) for key, times in self._missed.items() if times >= HELD]
        held = (key for key, one in self._found.items() if one.times >= HELD and now_s - one.since_s >= self._held_s)
        due = [by_key[key] for key in held if key not in self._standing][: MAX_REPORTED - self._reported]
        self._reported += len(due)
        self._standing.update(((part.kind, part.ranks), part) for part in due)
        return due


class _Held(NamedTuple):
    """How many times in a row something was found, and since when."""

    times: int
    since_s: float

    def again(self) -> _Held:
        return self._replace(times=self.times + 1)


def slow_parts_of(path: CriticalPath) -> Iterator[SlowPart]:
    """What notably prolongs steps: of a rank only its greatest cause, and no rank of a node or stage that is slow."""
    seen: set[int] = set()
    causes = [cause for cause in path.causes if cause.gain_ns >= LEAST_SHARE * path.step_ns]
    for cause in sorted(causes, key=lambda cause: -len(cause.ranks)):
        kind = _slow_kind(cause.kind)
        if kind is not None and not seen.issuperset(cause.ranks):
            seen.update(cause.ranks)
            yield _part(cause, kind, path)


def _slow_kind(kind: CauseKind) -> FindingKind | None:
    match kind:
        case CauseKind.LINE | CauseKind.RANK:
            return FindingKind.SLOW_RANK
        case CauseKind.NODE:
            return FindingKind.SLOW_NODE
        case CauseKind.STAGE:
            return FindingKind.SLOW_STAGE
        case CauseKind.TRANSFER:
            return None


def _part(cause: Cause, kind: FindingKind, path: CriticalPath) -> SlowPart:
    label = cause.label
    gain = f"{duration(cause.gain_ns)} ({share(cause.gain_ns, path.step_ns)})"
    return SlowPart(
        kind=kind,
        ranks=cause.ranks,
        operation=label.operation if label is not None else "",
        group=label.group if label is not None else "",
        call_site=label.site if label is not None else None,
        excess_s=cause.excess_ns / 1e9,
        gain_s=cause.gain_ns / 1e9,
        step_s=path.step_ns / 1e9,
        steps=len(path.steps),
        compared=path.ranks,
        text=f"{sentence(cause, path.group_names)}; without that, steps would be up to {gain} shorter",
    )


def lengths_of(path: CriticalPath) -> PathLengths:
    """Return what metrics show of a path."""
    ranks = sorted(path.by_rank, key=lambda one: (-one.on_path_ns, one.rank))[:MOST_RANKS]
    return PathLengths(
        kinds={kind.value: length_ns / 1e9 for kind, length_ns in path.by_kind.items()},
        ranks={one.rank: one.on_path_ns / 1e9 for one in ranks if one.on_path_ns},
        gains=tuple(
            Gain(cause.kind.value, cause.ranks, cause.label.operation if cause.label else "", cause.gain_ns / 1e9)
            for cause in path.causes
        ),
    )
