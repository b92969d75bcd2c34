"""Sorts dumps that lie together into jobs: a folder may hold what earlier jobs have left, and some ranks twice.

Files of a job with more ranks than the next one remain beside those that the next one has overwritten. Two dumps are of
different jobs if they disagree on the members of a group that one of their ranks is in, or if hours lie between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.sources.flight.dump import GLOO, called_name
from otel_torchdist.sources.flight.history import CondensedDump

APART_NS: Final = 3_600_000_000_000
"""Longer than ranks of one job differ in what they recorded last: by then the longest usual timeout has passed."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The dumps of one job.

    Attributes:
        dumps: One for each rank, ascending.
        replaced: Dumps of ranks of which there is a newer one, or one of another library.
    """

    dumps: tuple[CondensedDump, ...]
    replaced: tuple[CondensedDump, ...]

    @property
    def newest_ns(self) -> int:
        """The newest time in its dumps."""
        return max(one.newest_ns for one in self.dumps)


def sort_into_jobs(dumps: Iterable[CondensedDump]) -> list[FoundJob]:
    """Return the jobs to which dumps belong, the one with most ranks first, and then the newest."""
    found: list[_Job] = []
    # Dumps without entries have no time, and go where their groups fit.
    for one in sorted(dumps, key=lambda one: (not one.newest_ns, one.newest_ns, one.rank)):
        home = next((job for job in reversed(found) if job.has_room_for(one)), None)
        if home is None:
            home = _Job()
            found.append(home)
        home.add(one)
    jobs = [_finished(job.dumps) for job in found]
    return sorted(jobs, key=lambda job: (-len(job.dumps), -job.newest_ns))


@dataclass(slots=True)
class _Job:
    dumps: list[CondensedDump] = field(default_factory=list[CondensedDump])
    newest_ns: int = 0
    members: dict[str, list[tuple[int, ...]]] = field(default_factory=dict[str, list[tuple[int, ...]]])
    ranks: set[int] = field(default_factory=set[int])

    def add(self, one: CondensedDump) -> None:
        self.dumps.append(one)
        self.ranks.add(one.rank)
        self.newest_ns = max(self.newest_ns, one.newest_ns)
        for group in one.dump.groups.values():
            known = self.members.setdefault(group.name, [])
            if group.ranks and not any(group.ranks is other for other in known):
                known.append(group.ranks)

    def has_room_for(self, one: CondensedDump) -> bool:
        if one.newest_ns and self.newest_ns and one.oldest_ns - self.newest_ns > APART_NS:
            return False
        return not any(self._disagrees(group.name, group.ranks, one.rank) for group in one.dump.groups.values())

    def _disagrees(self, name: str, ranks: tuple[int, ...], rank: int) -> bool:
        if not ranks:
            return False
        others = [other for other in self.members.get(name, ()) if other is not ranks and other != ranks]
        return any(
            rank in other or (not self.ranks.isdisjoint(ranks) and bool({*ranks} & {*other})) for other in others
        )


def _finished(dumps: Sequence[CondensedDump]) -> FoundJob:
    chosen: dict[int, CondensedDump] = {}
    replaced: list[CondensedDump] = []
    for one in dumps:
        other = chosen.get(one.rank)
        if other is None:
            chosen[one.rank] = one
            continue
        newer = max(other, one, key=_preference)
        replaced.append(one if newer is other else other)
        chosen[one.rank] = newer
    return FoundJob(tuple(chosen[rank] for rank in sorted(chosen)), tuple(replaced))


def _preference(one: CondensedDump) -> tuple[bool, int, int]:
    """Return the sort key for dumps of one rank: a device's library counts first, then the newest record."""
    libraries = {called_name(call.entry.profiling_name).library for call in one.calls}
    return bool(libraries - {GLOO}), one.newest_ns, one.lost + len(one.calls)
