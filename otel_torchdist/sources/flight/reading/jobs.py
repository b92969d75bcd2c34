"""Sorts dumps into jobs: a folder may hold dumps of earlier jobs, and several dumps of a rank.

A job overwrites the files of the previous job, but leaves the files of higher ranks if the previous job had more.
Two dumps belong to different jobs if they disagree on the members of a group that contains one of their ranks, or if
more than an hour lies between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.sources.flight.dump import GLOO, parse_profiling_name
from otel_torchdist.sources.flight.history import CondensedDump

MIN_APART_NS: Final = 3_600_000_000_000
"""Minimum time between dumps of different jobs. Dumps of one job usually differ by less: by one timeout."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The dumps of one job.

    Attributes:
        dumps: One for each rank, ascending.
        replaced: Other dumps of these ranks: older, or of gloo beside a device's library.
    """

    dumps: tuple[CondensedDump, ...]
    replaced: tuple[CondensedDump, ...]

    @property
    def newest_ns(self) -> int:
        """The newest time in its dumps."""
        return max(dump.newest_ns for dump in self.dumps)


def sort_into_jobs(dumps: Iterable[CondensedDump]) -> list[FoundJob]:
    """Sort dumps into jobs. Jobs with more ranks come first, then newer jobs."""
    drafts: list[_Job] = []
    # Dumps without entries have no time. They come last, and join a job whose groups they match.
    for dump in sorted(dumps, key=lambda dump: (not dump.newest_ns, dump.newest_ns, dump.rank)):
        draft = next((draft for draft in reversed(drafts) if draft.accepts(dump)), None)
        if draft is None:
            draft = _Job()
            drafts.append(draft)
        draft.add(dump)
    jobs = [_one_dump_per_rank(draft.dumps) for draft in drafts]
    return sorted(jobs, key=lambda job: (-len(job.dumps), -job.newest_ns))


@dataclass(slots=True)
class _Job:
    """A job that is still being put together.

    Attributes:
        members: The different member lists of each group, by the group's name.
    """

    dumps: list[CondensedDump] = field(default_factory=list[CondensedDump])
    newest_ns: int = 0
    members: dict[str, list[tuple[int, ...]]] = field(default_factory=dict[str, list[tuple[int, ...]]])
    ranks: set[int] = field(default_factory=set[int])

    def add(self, condensed: CondensedDump) -> None:
        self.dumps.append(condensed)
        self.ranks.add(condensed.rank)
        self.newest_ns = max(self.newest_ns, condensed.newest_ns)
        for group in condensed.dump.groups.values():
            known = self.members.setdefault(group.name, [])
            if group.ranks and not any(group.ranks is other for other in known):
                known.append(group.ranks)

    def accepts(self, condensed: CondensedDump) -> bool:
        if condensed.newest_ns and self.newest_ns and condensed.oldest_ns - self.newest_ns > MIN_APART_NS:
            return False
        groups = condensed.dump.groups.values()
        return not any(self._disagrees(group.name, group.ranks, condensed.rank) for group in groups)

    def _disagrees(self, name: str, ranks: tuple[int, ...], rank: int) -> bool:
        if not ranks:
            return False
        differing = [known for known in self.members.get(name, ()) if known is not ranks and known != ranks]
        return any(
            rank in known or (not self.ranks.isdisjoint(ranks) and bool({*ranks} & {*known})) for known in differing
        )


def _one_dump_per_rank(dumps: Sequence[CondensedDump]) -> FoundJob:
    chosen: dict[int, CondensedDump] = {}
    replaced: list[CondensedDump] = []
    for dump in dumps:
        other = chosen.get(dump.rank)
        if other is None:
            chosen[dump.rank] = dump
            continue
        preferred = max(other, dump, key=_preference)
        replaced.append(dump if preferred is other else other)
        chosen[dump.rank] = preferred
    return FoundJob(tuple(chosen[rank] for rank in sorted(chosen)), tuple(replaced))


def _preference(condensed: CondensedDump) -> tuple[bool, int, int]:
    """Return the sort key for dumps of one rank: a device's library before gloo, then newer before older."""
    libraries = {parse_profiling_name(call.entry.profiling_name).library for call in condensed.calls}
    return bool(libraries - {GLOO}), condensed.newest_ns, condensed.lost + len(condensed.calls)
