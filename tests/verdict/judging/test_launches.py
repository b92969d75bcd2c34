"""Launches: the ranks that are not there, the ranks that look for a store elsewhere, and those that failed."""

from __future__ import annotations

import dataclasses

from otel_torchdist.tape.layout import How, RecordKind, TapeState
from otel_torchdist.verdict.model import Verdict, VerdictKind
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.calls import GroupView
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import verdicts
from tests.support.worlds.sentences import the_verdict

HERE = "127.0.0.1:29500"
THERE = "127.0.0.1:29501"
NODE = "node0:29500"


def at(address: str, size: int = 4, has_store: bool = False) -> GroupView:
    """The default group as a rank sees it that meets the others at an address."""
    view = group_of(*range(size), description="default_pg")
    name = dataclasses.replace(view.name, address=address, backend="gloo" if has_store else "")
    return dataclasses.replace(view, name=name)


def launch(world: FakeWorld, ranks: dict[int, GroupView], at_s: float = 1.0) -> dict[int, int]:
    """Have ranks enter `init_process_group`; returns the numbers of their operations."""
    return {
        rank: world.ranks[rank].enter(group, at_s, "init_process_group", kind=RecordKind.RENDEZVOUS)
        for rank, group in ranks.items()
    }


def verdict_of(world: FakeWorld, now_s: float = 15.0, only: tuple[int, ...] | None = None) -> Verdict:
    """The verdict on a launch."""
    return the_verdict(world.snapshot(now_s, only=only))


def test_rank_that_never_came_at_all() -> None:
    """A rank that was never seen is named, with who waits for it, where, and since when; so is the host that waits."""
    world = FakeWorld(4)
    launch(world, {0: at(HERE), 1: at(HERE, has_store=True), 2: at(HERE, has_store=True)})
    verdict = verdict_of(world, only=(0, 1, 2))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (3,))
    assert sentence(verdict, 14) == (
        "rank 3 has never appeared: 3 of 4 ranks have waited at 127.0.0.1:29500 for 14.0 s, in init_process_group, "
        "called in train at train.py:42"
    )


def test_ranks_of_another_node_may_be_there() -> None:
    """Where ranks of other nodes may meet, a rank that is not seen here is not said to be nowhere."""
    world = FakeWorld(4)
    launch(world, {0: at(NODE), 1: at(NODE, has_store=True)})
    said = sentence(verdict_of(world, only=(0, 1)), 14)
    assert said.startswith("ranks 2-3 have not been seen: 2 of 4 ranks have waited at node0:29500 for 14.0 s, in ")
    world = FakeWorld(2)
    launch(world, {1: at("", size=2)})
    assert "1 of 2 ranks has waited for 14.0 s" in sentence(verdict_of(world, only=(1,)), 14)


def test_rank_that_looks_elsewhere() -> None:
    """A rank without a store that looks for it at another address than its host is named, with both addresses."""
    world = FakeWorld(4)
    launch(world, {0: at(HERE), 1: at(HERE, has_store=True), 2: at(HERE, has_store=True), 3: at(THERE)})
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (3,))
    assert sentence(verdict, 14).startswith(
        "rank 3 looks for the store at 127.0.0.1:29501, but ranks 0-2 wait at 127.0.0.1:29500: init_process_group has "
        "been blocked for 14.0 s"
    )


def test_other_name_for_the_same_address() -> None:
    """A rank that has the store is not named because its node has another name for the address."""
    world = FakeWorld(4)
    launch(world, {0: at(NODE), 1: at("10.0.0.1:29500", has_store=True), 2: at(NODE, has_store=True)})
    verdict = verdict_of(world, only=(0, 1, 2))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (3,))
    assert ". Ranks 0,2 wait at node0:29500, rank 1 waits at 10.0.0.1:29500" in sentence(verdict, 14)


def test_rank_that_only_just_looks_elsewhere() -> None:
    """A rank that came a moment ago is not named before it has looked for the store for the threshold."""
    world = FakeWorld(3)
    launch(world, {0: at(HERE, 3), 1: at(HERE, 3, has_store=True)})
    launch(world, {2: at(THERE, 3)}, at_s=14.0)
    assert list(verdicts(world.snapshot(15.0)).values()) == [None]


def test_rank_that_cannot_reach_the_store() -> None:
    """A rank that looks at the host's own address and reaches nothing is named, if all others are there."""
    world = FakeWorld(3)
    launch(world, {0: at(NODE, 3), 1: at(NODE, 3), 2: at(NODE, 3, has_store=True)})
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (1,))
    assert sentence(verdict, 14).startswith("rank 1 has not reached the store at node0:29500, where rank 0 waits, for ")
    verdict = verdict_of(world, only=(0, 1))
    assert verdict.ranks == (2,)


def test_host_that_failed() -> None:
    """The rank that could not host the store, because its port was taken, is named, with where the others wait."""
    world = FakeWorld(3)
    numbers = launch(world, {rank: at(HERE, 3) for rank in range(3)})
    world.ranks[0].end(numbers[0], 1.1, How.FAILED, "DistNetworkError")
    [(channel, before)] = world.ranks[0].progress.items()
    world.ranks[0].progress[channel] = before._replace(entered=0)  # as of all that raises before it has begun
    world.ranks[0].die(1.2, TapeState.FAILED, "DistNetworkError")
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (0,))
    said = sentence(verdict, 14)
    assert said.startswith("rank 0 ended with DistNetworkError, and init_process_group (default_pg) has been blocked ")
    assert ". 2 of 3 ranks wait at 127.0.0.1:29500 in " in said


def test_several_processes_of_one_rank() -> None:
    """Where a rank is missing because two processes claim to be another one, both are said, with their ids."""
    world = FakeWorld(3)
    launch(world, {0: at(HERE, 3), 1: at(HERE, 3, has_store=True)})
    seen = world.snapshot(15.0, only=(0, 1))
    twins = dataclasses.replace(seen.ranks[1], twins=(4711, 4712))
    verdict = the_verdict(dataclasses.replace(seen, ranks={**seen.ranks, 1: twins}))
    assert verdict.ranks == (2,)
    assert sentence(verdict, 14).endswith(". 2 processes claim to be rank 1 (pids 4711, 4712)")


def test_rank_that_the_world_does_not_have() -> None:
    """A rank that failed because its world is smaller than that is named, with the reason."""
    world = FakeWorld(3)
    group = at(HERE, 2)
    numbers = launch(world, dict.fromkeys(range(3), group))
    world.ranks[2].end(numbers[2], 1.1, How.FAILED, "RuntimeError")
    [(channel, before)] = world.ranks[2].progress.items()
    world.ranks[2].progress[channel] = before._replace(entered=0)
    verdict = dataclasses.replace(verdict_of(world), ranks=(2,))
    assert ". There is no rank 2 in a world of 2" in sentence(verdict, 14)
