"""Reads traces for tests, in one call."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from otel_torchdist.analysis.parallelism.calls import calls_of
from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups, graph_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.sources.profiles.groups import ProfiledGroups
from otel_torchdist.sources.profiles.history import histories_of
from otel_torchdist.sources.profiles.reading.reader import FoundProfiles, read_profiles


def read(*paths: Path) -> FoundProfiles:
    """Read traces with which nothing is wrong."""
    found = read_profiles(paths)
    assert found.notes == ()
    return found


def histories(*paths: Path) -> list[RankHistory]:
    """The histories of ranks, from such traces."""
    profiles = read(*paths).profiles
    return list(histories_of(profiles, ProfiledGroups(profiles)))


def graph_in(*paths: Path) -> Graph:
    """The graph that they show."""
    return graph_of(calls_of(histories(*paths)))


def roles(groups: ParallelGroups) -> tuple[str, ...]:
    """What groups are for, in a fixed order."""
    return tuple(sorted(one.role.value for one in groups.roles))


def shown(found: Iterable[RankHistory]) -> list[tuple[int, str]]:
    """Rank and name of each call."""
    return [(history.rank, view.name) for history in found for view in history.operations]
