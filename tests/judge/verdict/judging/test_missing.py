"""Verdicts on missing ranks: devices, nodes, and announced waits."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.stall.events import Leads, Occasion
from otel_torchdist.judge.verdict.rules import waits_of
from otel_torchdist.judge.verdict.verdict import Doubt, locate
from otel_torchdist.judge.verdict.wording.next_steps import next_step
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.detectors import LOCAL, Accompanied, Watching, stalled, with_others
from tests.support.worlds.fake_world import START_NS, FakeWorld, group_of
from tests.support.worlds.judging import named, the_verdict

# --- Verdicts on operations that devices carry out: enqueued is not yet entered ---------------------------------------


EVERYBODY = group_of(0, 1, 2, description="default_pg")
PAIR = group_of(0, 1, description="mesh_dp")
OTHERS = group_of(1, 2, description="mesh_tp")
NOW_S = 20.0


def enqueue(world: FakeWorld, rank: int, group: GroupView, at_s: float, begun_s: float | None = None) -> int:
    """Let a rank enqueue an operation on its device, which reaches it at `begun_s` or never."""
    number = world.ranks[rank].enter(group, at_s, flags=Flag.ON_DEVICE, blocking=False)
    if begun_s is not None:
        world.ranks[rank].begin_on_device(number, begun_s)
    return number


def test_queued_operations_are_no_waits() -> None:
    """While all devices are busy with other work, no rank is late."""
    world = FakeWorld(3)
    for rank in range(3):
        enqueue(world, rank, EVERYBODY, at_s=0.0)
    assert waits_of(world.snapshot(3_600.0)) == []


def test_a_wait_begins_when_the_device_does() -> None:
    """An operation's age counts from when its device reached it."""
    world = FakeWorld(3)
    enqueue(world, 0, EVERYBODY, at_s=0.0, begun_s=7.0)
    [wait] = waits_of(world.snapshot(NOW_S))
    assert wait.since_ns - START_NS == 7_000_000_000


def test_operations_that_are_not_queried_on_the_device() -> None:
    """An operation that is not queried on the device counts as begun when it was entered."""
    untracked = Operation(
        number=1, kind=RecordKind.OPERATION, entered_ns=5, step=0, sequence=1, message_bytes=0, group=1, signature=1,
        call_site=0, label=0, peer=-1, tag=0, thread=1, flags=Flag.ON_DEVICE, started_ns=5, started_how=How.UNTRACKED,
    )  # fmt: skip
    assert untracked.waiting_since_ns == 5
    assert untracked.is_blocking
    assert not untracked.is_queued


# --- A wait that ranks have announced excuses no other rank -----------------------------------------------------------


THREE = group_of(0, 1, 2, description="default_pg")


def test_expectation_excuses_no_other_rank_at_the_same_place() -> None:
    """Rank 0 evaluates and has announced it. Rank 2, which should be waiting, hangs: only rank 2 is named."""
    world = FakeWorld(3)
    world.meet(THREE, 0.1)
    world.ranks[1].enter(THREE, 1.0, "barrier")
    world.ranks[0].expects_until_s = 1e6
    watching = Watching(world).until(20.0)
    assert [(event.verdict.kind, event.verdict.ranks) for _, event in watching.verdicts] == [(VerdictKind.ABSENT, (2,))]


def test_expectation_does_not_hide_a_frozen_rank() -> None:
    """Rank 0 is held by a debugger and has announced it. Rank 2 is stopped without an announcement: it is named."""
    world = FakeWorld(3)
    world.ranks[1].enter(THREE, 1.0, "barrier")
    world.ranks[0].expects_until_s = 1e6
    world.ranks[0].stopped = "t"
    world.ranks[2].stopped = "T"
    watching = Watching(world).until(20.0)
    assert {(event.verdict.kind, event.verdict.ranks) for _, event in watching.verdicts} == {(VerdictKind.FROZEN, (2,))}


def test_expectation_does_not_hide_another_stall() -> None:
    """Of two independent stalls, the older one is expected: the other is reported."""
    world = FakeWorld(4)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[2].enter(group_of(2, 3), 2.0)
    world.ranks[1].expects_until_s = 1e6
    watching = Watching(world).until(20.0)
    assert {event.verdict.ranks for _, event in watching.verdicts} == {(3,)}


# --- A node as a whole: named where all of its ranks are, and only then -----------------------------------------------


WORLD = group_of(*range(6), description="default_pg")


def missing(hosts: str, *missing: int) -> str:
    """Return the sentence on a world with missing ranks. `hosts` has one letter per rank."""
    world = FakeWorld(6)
    for rank, host in zip(world.ranks, hosts, strict=True):
        rank.host = f"node-{host}"
    world.meet(WORLD, 0.0)
    for rank in world.ranks:
        if rank.rank not in missing:
            rank.enter(WORLD, 5.0)
    snapshot = world.snapshot(30.0)
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, missing)
    return describe_verdict(locate(snapshot, verdict), 25.0)


def test_all_ranks_of_a_node() -> None:
    """If exactly the ranks of one node are named, the sentence says so."""
    assert missing("aabbcc", 2, 3).startswith(
        "ranks 2-3 have not entered all_reduce (sequence 2, default_pg) for 25.0 s; rank 2 was last in all_reduce, "
        "called in train at train.py:42; 4 of 6 ranks wait in train at train.py:42. They are all ranks of node-b; "
    )


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [("aabbbc", (2, 3)), ("aabbcc", (2, 3, 4)), ("aabbcc", (1, 2)), ("abbbbb", (0,)), ("aaaaaa", (2, 3))],
    ids=["not all of a node", "more than a node", "of two nodes", "a node of one rank", "only one node"],
)
def test_anything_else(hosts: str, ranks: tuple[int, ...]) -> None:
    """In all other cases no node is named."""
    assert "node-" not in missing(hosts, *ranks)


# --- Ranks whose agents do not answer: when they are named, and when another rank is ----------------------------------


def cut_off(world: FakeWorld, visible: tuple[int, ...], **hosts: int) -> WorldSnapshot:
    """Take a snapshot without the ranks of agents that do not answer."""
    snapshot = world.snapshot(30.0, visible)
    return dataclasses.replace(snapshot, unreachable={rank: host for host, rank in hosts.items()})


def test_unreachable_ranks_are_named() -> None:
    """All ranks that report wait: the unreachable ranks are named, with their hosts."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1), beta=2, alpha=3))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.UNREACHABLE, (2, 3), ("alpha", "beta"))
    assert describe_verdict(verdict, 25.0) == (
        "ranks 2-3 are unreachable (the agents on alpha, beta do not answer), "
        "and all_reduce (sequence 2, default_pg) has been blocked for 25.0 s; 2 of 4 ranks wait. 2 of 4 ranks report"
    )


def test_agents_of_another_version() -> None:
    """Their version is the reason in place of silence, each host has its own reason, and the step is to upgrade."""
    world, _ = stalled()
    snapshot = cut_off(world, (0, 1), beta=2, alpha=3)
    verdict = the_verdict(dataclasses.replace(snapshot, other_versions={"alpha": "9.1.0", "gamma": "8.0.0"}))
    assert describe_verdict(verdict, 25.0) == (
        "ranks 2-3 are unreachable (the agent on alpha is of another version, 9.1.0; "
        "the agent on beta does not answer), "
        "and all_reduce (sequence 2, default_pg) has been blocked for 25.0 s; 2 of 4 ranks wait. 2 of 4 ranks report"
    )
    assert next_step(verdict) == "upgrade the agents of this job to one version"
    assert next_step(the_verdict(snapshot)).startswith("check that the node of ranks 2-3 is up")


def test_rank_that_is_seen_to_be_absent_is_blamed_first() -> None:
    """A missing rank that reports is named before unreachable ranks."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1, 2), beta=3))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.ABSENT, (2,), ())


def test_rank_that_is_seen_to_be_dead_is_blamed_first() -> None:
    """A dead rank that was observed is named before unreachable ranks too."""
    world, _ = stalled()
    world.ranks[2].die(6.0)
    assert named(cut_off(world, (0, 1, 2), beta=3)) == (VerdictKind.DEAD, (2,))


def test_silent_is_not_unreachable() -> None:
    """Ranks never reported by any agent are silent, not unreachable. Unreachable non-members are not named."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1), beta=9))
    assert (verdict.kind, verdict.ranks, verdict.doubt) == (VerdictKind.UNKNOWN, (), Doubt.SILENT)


def test_peer_out_of_reach() -> None:
    """A receive from an unreachable rank gives the verdict on that rank."""
    world = FakeWorld(2)
    number = world.ranks[0].enter(
        group_of(0, 1), 5.0, "recv", flags=Flag.POINT_TO_POINT | Flag.END_BY_WAIT, peer=1, blocking=False
    )
    world.ranks[0].wait_for(number, 5.1)
    verdict = the_verdict(cut_off(world, (0,), beta=1))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.UNREACHABLE, (1,), ("beta",))


def test_reach_that_comes_back_changes_the_verdict() -> None:
    """The verdict is `unreachable` until the other agent answers again. Then the late rank is named."""
    world, _ = stalled()
    away = {2: "beta", 3: "beta"}
    lost = Accompanied(world, lambda seen: Leads(dataclasses.replace(seen, unreachable=away)), only=LOCAL).until(17.0)
    lost.peer_agents.role = with_others(world)
    lost.until(20.0)
    assert [(event.occasion, event.verdict.kind, event.verdict.ranks) for _, event in lost.verdicts] == [
        (Occasion.OPENED, VerdictKind.UNREACHABLE, (2, 3)),
        (Occasion.CHANGED, VerdictKind.ABSENT, (2,)),
    ]
