"""Detects groups used by two threads of a rank at the same time, although nothing stalls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.stall.attributes import of_group
from otel_torchdist.judge.verdict.judging.sharing import swapped_callers
from otel_torchdist.judge.verdict.verdict import Sharing
from otel_torchdist.judge.verdict.wording.calls import describe_sharing
from otel_torchdist.judge.verdict.wording.sentence import with_short_start
from otel_torchdist.judge.world.occupations import MIN_OCCURRENCES
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.rank_state.occupations import SharedGroup
from otel_torchdist.model.reports.finding import Finding, FindingKind, JudgedWorld, Severity
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.telemetry import semconv

SETTLED_NS: Final = 2_000_000_000
"""Time in ns to wait for other ranks with the same observation."""


@dataclass(frozen=True, slots=True)
class GroupShared:
    """A group used by two threads of some ranks at the same time.

    Attributes:
        ranks: Ranks on which it was observed, ascending.
        example: The observation on the first of them.
    """

    group: GroupView
    ranks: tuple[int, ...]
    example: SharedGroup

    @property
    def text(self) -> str:
        """The threads that use the group at the same time, as a sentence."""
        return (
            f"{describe_sharing(self.ranks, self.example, self.group.title)}; the backend pairs calls in the order in "
            "which each rank makes them, so results may be wrong"
        )

    def finding(self, judged: JudgedWorld) -> Finding:
        """Return the finding on a group used by two threads."""
        operation = self.example.operations[0]
        return Finding(
            kind=FindingKind.SHARED_GROUP,
            severity=Severity.ERROR,
            incident=judged.incident(f"group {self.group.key} shared {judged.world.taken_ns}"),
            ranks=self.ranks,
            group=self.group.key,
            operation=operation,
            text=with_short_start(self.text),
            world=judged.world,
            attributes={semconv.OPERATION: operation, **of_group(self.group)},
        )


class SharedGroupFinder:
    """Detects the shared groups of one run. Each group is reported once."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._reported: set[str] = set()

    def leave(self, group: str) -> None:
        """Do not report a group any more, given its key: a verdict on a stall has reported it."""
        self._reported.add(group)

    def find(self, world: WorldSnapshot, is_last: bool = False) -> list[GroupShared]:
        """Return the shared groups to report now. At the end of a run, report immediately."""
        seen: dict[str, list[tuple[int, SharedGroup]]] = {}
        for view in world.in_order:
            for example in view.shared_groups:
                if example.group not in self._reported and example.times >= MIN_OCCURRENCES:
                    seen.setdefault(example.group, []).append((view.rank, example))
        for sharing in _swapped(world):
            key = sharing.example.group
            if key not in self._reported and key not in seen:
                seen[key] = [(rank, sharing.example) for rank in sharing.ranks]
        found: list[GroupShared] = []
        for key, of_ranks in seen.items():
            waited_ns = world.taken_ns - self._since_ns.setdefault(key, world.taken_ns)
            group = next((view.groups[key] for view in world.in_order if key in view.groups), None)
            if group is not None and (is_last or waited_ns >= SETTLED_NS):
                self._reported.add(key)
                found.append(GroupShared(group, tuple(rank for rank, _ in of_ranks), of_ranks[0][1]))
        return found


def _swapped(world: WorldSnapshot) -> Iterator[Sharing]:
    """Yield groups in which threads of two functions made the same call on two ranks."""
    several = {
        channel for view in world.ranks.values() for channel, known in view.progress.items() if known.callers[1:]
    }
    for channel in several:
        if not channel.is_point_to_point and channel.kind is RecordKind.OPERATION:
            views = [view for view in world.in_order if channel in view.progress]
            last = min(view.progress[channel].entered for view in views)
            sharing = swapped_callers(views, channel, last)
            if sharing is not None:
                yield sharing
