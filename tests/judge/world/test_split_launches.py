"""Launches whose ranks wait at different addresses: joined, while unrelated launches never are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from otel_torchdist.judge.world.assembly import with_other_parts, with_other_sizes
from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.snapshot import RankView
from tests.support.worlds.fake_world import FakeWorld, group_of

LINE = 42


@dataclass(frozen=True)
class Part:
    """Ranks that wait in a launch at one address.

    Attributes:
        ranks: The ranks.
        port: Port of their store.
        size: Value of WORLD_SIZE.
        at_s: When they began to wait.
        line: Line of their call.
        run: Their run id.
        end: End of their launch after ten seconds; None while it is open.
    """

    ranks: tuple[int, ...]
    port: int
    size: int = 3
    at_s: float = 1.0
    line: int = LINE
    run: int = 0
    end: How | None = None

    def views(self, now_s: float) -> dict[int, RankView]:
        """Return the views of the ranks at a given time."""
        world, group = FakeWorld(self.size), group_of(*range(self.size), description="default_pg")
        name = dataclasses.replace(group.name, address=f"127.0.0.1:{self.port}", backend="")
        group = dataclasses.replace(group, name=name)
        for rank in self.ranks:
            number = world.ranks[rank].enter(group, self.at_s, "init_process_group", kind=RecordKind.RENDEZVOUS)
            if self.end is not None:
                world.ranks[rank].end(
                    number, self.at_s + 10, self.end, "DistStoreError" if self.end is How.FAILED else ""
                )
        views = world.snapshot(now_s, only=self.ranks).ranks
        changed = {"run": self.run, "world_size": self.size}
        return {rank: dataclasses.replace(self._called(view), **changed) for rank, view in views.items()}

    def _called(self, view: RankView) -> RankView:
        opened = []
        for operation in view.open:
            assert operation.call_site is not None
            opened.append(
                dataclasses.replace(operation, call_site=dataclasses.replace(operation.call_site, line=self.line))
            )
        return dataclasses.replace(view, open=tuple(opened))


def seen(now_s: float, parts: Mapping[str, Part]) -> dict[str, list[int]]:
    """Return the ranks with which each job is judged."""
    found = with_other_parts({name: part.views(now_s) for name, part in parts.items()})
    return {name: sorted(ranks) for name, ranks in found.items()}


HERE = Part((0, 1), 29500)


@pytest.mark.parametrize("end", [None, How.FAILED])
def test_rank_with_another_port(end: How | None) -> None:
    """A rank at another port is joined with the launch that lacks it, in both directions, and stays joined."""
    parts = {"here": dataclasses.replace(HERE, end=end), "there": Part((2,), 29501, end=end)}
    assert seen(15.0, parts) == {"here": [0, 1, 2], "there": [0, 1, 2]}


def test_three_addresses() -> None:
    """A launch is joined from three addresses."""
    parts = {"a": Part((0,), 29500), "b": Part((1,), 29501), "c": Part((2,), 29502)}
    assert seen(15.0, parts) == {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2]}


@pytest.mark.parametrize(
    "other",
    [
        Part((0, 1, 2), 29501),
        Part((1, 2), 29501),
        Part((2,), 29501, size=4),
        Part((2,), 29501, line=7),
        Part((2,), 29501, run=4711),
        Part((2,), 29501, at_s=14.5),
        Part((2,), 29501, end=How.CALL),
        Part((2,), 29500),
    ],
    ids=[
        "has all its ranks",
        "has a rank that this one has",
        "is of another size",
        "was called from another line",
        "knows its run",
        "has only just come",
        "has all come",
        "waits at the same address",
    ],
)
def test_other_job(other: Part) -> None:
    """A job that is not certainly part of the launch is not joined."""
    assert seen(15.0, {"here": HERE, "there": other}) == {"here": [0, 1], "there": [*other.ranks]}


def test_rank_of_which_there_are_two() -> None:
    """If two jobs have the missing rank, neither is joined."""
    parts = {"here": HERE, "there": Part((2,), 29501), "and there": Part((2,), 29502)}
    assert seen(15.0, parts)["here"] == [0, 1]


def test_launches_one_after_the_other() -> None:
    """A launch that failed before another began is not joined with it."""
    parts = {"before": dataclasses.replace(HERE, end=How.FAILED), "now": Part((2,), 29501, at_s=20.0)}
    assert seen(30.0, parts) == {"before": [0, 1], "now": [2]}


def other_sizes(parts: Mapping[str, Part]) -> dict[str, dict[int, int]]:
    """Return the other world sizes known to each job."""
    found = with_other_sizes({name: part.views(15.0) for name, part in parts.items()})
    return {
        name: {rank: size for view in ranks.values() for rank, size in view.other_sizes.items()}
        for name, ranks in found.items()
    }


def test_another_size_at_the_same_address() -> None:
    """Ranks with different world sizes at one address know of each other, even if one has a run id."""
    parts = {"here": dataclasses.replace(HERE, run=4711), "there": Part((2,), 29500, size=4)}
    assert other_sizes(parts) == {"here": {2: 4}, "there": {0: 3, 1: 3}}


@pytest.mark.parametrize("other", [Part((2,), 29501, size=4), Part((2,), 29500, size=3)], ids=["address", "size"])
def test_no_other_size(other: Part) -> None:
    """Ranks at another address, or with the same size, are no conflict."""
    assert other_sizes({"here": HERE, "there": other}) == {"here": {}, "there": {}}


def test_size_of_an_earlier_attempt() -> None:
    """A job restarted with another world size is no conflict."""
    before = {rank: dataclasses.replace(view, alive=False) for rank, view in HERE.views(5.0).items()}
    now = {
        rank: dataclasses.replace(view, created_ns=view.heartbeat_ns)
        for rank, view in Part((0, 1), 29500, size=2, at_s=12.0).views(15.0).items()
    }
    found = with_other_sizes({"before": before, "now": now})
    assert all(not view.other_sizes for ranks in found.values() for view in ranks.values())
