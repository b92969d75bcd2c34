"""Derives a run's slow parts (ranks, nodes or stages) from its successive critical paths. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, CriticalPath
from otel_torchdist.analysis.critical_path.wording import describe_cause
from otel_torchdist.model.reports.finding import FindingKind, Gain, PathLengths, SlowPart
from otel_torchdist.model.text import duration, share

MIN_SHARE: Final = 0.1
"""Minimum share of a step that a cause must cost; the same as for stragglers."""
MIN_PATHS: Final = 3
"""Consecutive paths that must contain a cause before it is reported, and lack it before it is over.

If ranks differ by chance alone, about one path in a hundred names a rank.
"""
PERSISTENCE_S: Final = 30.0
"""Seconds for which a cause must persist: on a busy machine, a rank may get less processor time for several seconds."""
MAX_REPORTED: Final = 64
"""Maximum slow parts reported of a run over its lifetime; more would add no information."""
MAX_RANKS: Final = 16
"""Maximum ranks whose lengths are shown in metrics."""

_Key = tuple[FindingKind, tuple[int, ...]]


class SlowParts:
    """The slow parts of one run.

    Attributes:
        ended: Reported parts that ended with the last path.
    """

    def __init__(self, persistence_s: float = PERSISTENCE_S) -> None:
        """Start without slow parts; report a part once it has persisted for `persistence_s` seconds."""
        self._persistence_s = persistence_s
        self._streaks: dict[_Key, _Streak] = {}
        self._absences: dict[_Key, int] = {}
        self._reported_parts: dict[_Key, SlowPart] = {}
        self._reported_count = 0
        self.ended: list[SlowPart] = []

    def update(self, parts: Iterable[SlowPart], now_s: float) -> list[SlowPart]:
        """Add the slow parts of the next path.

        Args:
            parts: Slow parts of that path.
            now_s: Monotonic time.

        Returns:
            The parts to report now.
        """
        by_key = {(part.kind, part.ranks): part for part in parts}
        self._streaks = {key: self._streaks.get(key, _Streak(0, now_s)).extended() for key in by_key}
        self._absences = {key: self._absences.get(key, 0) + 1 for key in self._reported_parts.keys() - by_key.keys()}
        self.ended = [self._reported_parts.pop(key) for key, times in self._absences.items() if times >= MIN_PATHS]
        persistent = (
            key
            for key, streak in self._streaks.items()
            if streak.paths >= MIN_PATHS and now_s - streak.since_s >= self._persistence_s
        )
        new = [by_key[key] for key in persistent if key not in self._reported_parts]
        due = new[: MAX_REPORTED - self._reported_count]
        self._reported_count += len(due)
        self._reported_parts.update(((part.kind, part.ranks), part) for part in due)
        return due


class _Streak(NamedTuple):
    """Consecutive paths with the same slow part, and the monotonic time of the first."""

    paths: int
    since_s: float

    def extended(self) -> _Streak:
        return self._replace(paths=self.paths + 1)


def slow_parts_of(path: CriticalPath) -> Iterator[SlowPart]:
    """Yield the slow parts of a path: for each rank its greatest cause, unless its whole node or stage is slow."""
    seen: set[int] = set()
    causes = [cause for cause in path.causes if cause.gain_ns >= MIN_SHARE * path.step_ns]
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
        text=f"{describe_cause(cause, path.group_names)}; without that, steps would be up to {gain} shorter",
    )


def lengths_of(path: CriticalPath) -> PathLengths:
    """Return the lengths of a path that metrics show, with the `MAX_RANKS` longest ranks."""
    ranks = sorted(path.by_rank, key=lambda rank: (-rank.on_path_ns, rank.rank))[:MAX_RANKS]
    return PathLengths(
        kinds={kind.value: length_ns / 1e9 for kind, length_ns in path.by_kind.items()},
        ranks={rank.rank: rank.on_path_ns / 1e9 for rank in ranks if rank.on_path_ns},
        gains=tuple(
            Gain(cause.kind.value, cause.ranks, cause.label.operation if cause.label else "", cause.gain_ns / 1e9)
            for cause in path.causes
        ),
    )
