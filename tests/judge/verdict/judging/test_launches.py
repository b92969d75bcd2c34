"""Verdicts on launches: missing ranks, ranks that use another address, and ranks that failed."""

from __future__ import annotations

import dataclasses
import signal

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.past.post_mortem import examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Blame, How, RecordKind, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.tapes.fake_tape import SECOND
from tests.support.worlds.detectors import Watching
from tests.support.worlds.fake_world import RUN, THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import located_verdict, verdicts

HERE = "127.0.0.1:29500"
THERE = "127.0.0.1:29501"
NODE = "node0:29500"


def at(address: str, size: int = 4, has_store: bool = False) -> GroupView:
    """Return the default group with the address of its store."""
    view = group_of(*range(size), description="default_pg")
    name = dataclasses.replace(view.name, address=address, backend="gloo" if has_store else "")
    return dataclasses.replace(view, name=name)


def launch(world: FakeWorld, ranks: dict[int, GroupView], at_s: float = 1.0) -> dict[int, int]:
    """Let ranks enter `init_process_group`, and return the numbers of their operations."""
    return {
        rank: world.ranks[rank].enter(group, at_s, "init_process_group", kind=RecordKind.RENDEZVOUS)
        for rank, group in ranks.items()
    }


def verdict_of(world: FakeWorld, now_s: float = 15.0, only: tuple[int, ...] | None = None) -> Verdict:
    """Return the verdict on a launch."""
    return located_verdict(world.snapshot(now_s, only=only))


def judged(world: WorldSnapshot) -> list[Verdict]:
    """Return the verdicts on a launch that has ended."""
    last = [view.last for view in world.ranks.values() if view.last is not None]
    found = [Judge(world, 5 * SECOND).verdict_on(operation.operation_id) for operation in last[:1]]
    return [locate(world, verdict) for verdict in found if verdict is not None]


def test_rank_that_never_came_at_all() -> None:
    """A rank that was never seen is named, with the ranks that wait for it, the address and the duration."""
    world = FakeWorld(4)
    launch(world, {0: at(HERE), 1: at(HERE, has_store=True), 2: at(HERE, has_store=True)})
    verdict = verdict_of(world, only=(0, 1, 2))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (3,))
    assert describe_verdict(verdict, 14) == (
        "rank 3 has not come to 127.0.0.1:29500, where 3 of 4 ranks have waited for 14.0 s, in init_process_group, "
        "called in train at train.py:42"
    )


def test_place_that_is_not_known() -> None:
    """No address is stated if it is unknown, or if ranks use several addresses."""
    world = FakeWorld(2)
    launch(world, {1: at("", size=2)})
    assert describe_verdict(verdict_of(world, only=(1,)), 14).startswith(
        "rank 0 has not come: 1 of 2 ranks has waited for 14."
    )
    world = FakeWorld(3)
    launch(world, {1: at(HERE, size=3), 2: at(THERE, size=3)})
    said = describe_verdict(verdict_of(world, only=(1, 2)), 14)
    assert said.startswith(
        "rank 0 has not come: 2 of 3 ranks have waited for 14.0 s, in init_process_group, called in "
    )
    assert said.endswith(". Rank 1 waits at 127.0.0.1:29500, rank 2 waits at 127.0.0.1:29501")


def test_rank_that_looks_elsewhere() -> None:
    """A rank without a store that uses a different address than the host is named, with both addresses."""
    world = FakeWorld(4)
    launch(world, {0: at(HERE), 1: at(HERE, has_store=True), 2: at(HERE, has_store=True), 3: at(THERE)})
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (3,))
    assert describe_verdict(verdict, 14).startswith(
        "rank 3 looks for the store at 127.0.0.1:29501, but ranks 0-2 wait at 127.0.0.1:29500: init_process_group has "
        "been blocked for 14.0 s"
    )
    world = FakeWorld(2)
    launch(world, {0: at(HERE, size=2), 1: at(THERE, size=2)})
    said = describe_verdict(verdict_of(world), 14)
    assert said.startswith("rank 1 looks for the store at 127.0.0.1:29501, but rank 0 waits at 127.0.0.1:29500: ")


def test_other_name_for_the_same_address() -> None:
    """A rank connected to the store is not named if its node only has another name for the address."""
    world = FakeWorld(4)
    launch(world, {0: at(NODE), 1: at("10.0.0.1:29500", has_store=True), 2: at(NODE, has_store=True)})
    verdict = verdict_of(world, only=(0, 1, 2))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (3,))
    assert ". Ranks 0,2 wait at node0:29500, rank 1 waits at 10.0.0.1:29500" in describe_verdict(verdict, 14)


def test_rank_that_only_just_looks_elsewhere() -> None:
    """A rank is not named before it has looked for the store for the threshold."""
    world = FakeWorld(3)
    launch(world, {0: at(HERE, 3), 1: at(HERE, 3, has_store=True)})
    launch(world, {2: at(THERE, 3)}, at_s=14.0)
    assert list(verdicts(world.snapshot(15.0)).values()) == [None]


def test_rank_that_cannot_reach_the_store() -> None:
    """A rank that cannot connect to the host's address is named, if no rank is unseen."""
    world = FakeWorld(3)
    launch(world, {0: at(NODE, 3), 1: at(NODE, 3), 2: at(NODE, 3, has_store=True)})
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (1,))
    assert describe_verdict(verdict, 14).startswith(
        "rank 1 has not reached the store at node0:29500, where rank 0 waits, for "
    )
    verdict = verdict_of(world, only=(0, 1))
    assert verdict.ranks == (2,)


def test_host_that_failed() -> None:
    """The rank that could not host the store, because its port was in use, is named, with the address."""
    world = FakeWorld(3)
    numbers = launch(world, {rank: at(HERE, 3) for rank in range(3)})
    world.ranks[0].end(numbers[0], 1.1, How.FAILED, "DistNetworkError", Blame.TAKEN)
    world.ranks[0].die(1.2, TapeState.FAILED, "DistNetworkError")
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (0,))
    said = describe_verdict(verdict, 14)
    assert said.startswith(
        "rank 0 could not host the store: 127.0.0.1:29500 is in use (DistNetworkError), and init_process_group has "
        "been blocked for 14.0 s"
    )
    assert "2 of 3 ranks wait at 127.0.0.1:29500 in " in said
    [alone] = judged(world.snapshot(15.0, only=(0,)))
    assert (alone.kind, alone.ranks) == (VerdictKind.DEAD, (0,))
    assert describe_verdict(alone, 0.1).startswith(
        "rank 0 could not host the store: 127.0.0.1:29500 is in use (DistNetworkErr"
    )


def test_host_that_tries_another_port() -> None:
    """A host that has handled an occupied port, and lives, is not named."""
    world = FakeWorld(2)
    numbers = launch(world, {0: at(HERE, 2), 1: at(HERE, 2)})
    world.ranks[0].end(numbers[0], 1.1, How.FAILED, "DistNetworkError", Blame.TAKEN)
    verdict = verdict_of(world)
    assert verdict.kind is not VerdictKind.DEAD
    assert "in use" not in describe_verdict(verdict, 14)


def test_several_processes_of_one_rank() -> None:
    """If a rank is missing and two processes claim another rank, their pids are stated."""
    world = FakeWorld(3)
    launch(world, {0: at(HERE, 3), 1: at(HERE, 3, has_store=True)})
    seen = world.snapshot(15.0, only=(0, 1))
    twins = dataclasses.replace(seen.ranks[1], twins=(4711, 4712))
    verdict = located_verdict(dataclasses.replace(seen, ranks={**seen.ranks, 1: twins}))
    assert verdict.ranks == (2,)
    assert describe_verdict(verdict, 14).endswith(". 2 processes claim to be rank 1 (pids 4711, 4712)")


def too_small() -> tuple[FakeWorld, int]:
    """Build a world of two ranks with three processes. Return it with the number of the third one's operation."""
    world = FakeWorld(3)
    numbers = launch(world, dict.fromkeys(range(3), at(HERE, 2)))
    for rank in range(2):
        world.ranks[rank].end(numbers[rank], 1.2, How.CALL)
    return world, numbers[2]


def test_rank_that_waits_in_a_world_that_is_too_small() -> None:
    """A rank number beyond the world size is named while it waits for the store, with the reason."""
    world, _ = too_small()
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (2,))
    assert describe_verdict(verdict, 14).startswith(
        "there is no rank 2 in a world of 2 (WORLD_SIZE): it has waited at 127.0.0.1:29500 for 14.0 s, in "
        "init_process_group, called in train at train.py:42"
    )


def test_rank_that_fails_in_a_world_that_is_too_small() -> None:
    """A rank beyond the world size is also named after it has failed in the backend, while the others continue."""
    world, number = too_small()
    world.ranks[2].end(number, 1.1, How.FAILED, "RuntimeError")
    world.ranks[2].die(1.2, TapeState.FAILED, "RuntimeError")
    found = [verdict for verdict in judged(world.snapshot(15.0)) if verdict is not None]
    assert [(verdict.kind, verdict.ranks) for verdict in found] == [(VerdictKind.DEAD, (2,))]
    assert describe_verdict(found[0], 14).startswith(
        "there is no rank 2 in a world of 2 (WORLD_SIZE): it failed in init_process_group (RuntimeError)"
    )


def test_another_world_size() -> None:
    """If ranks at one address have different world sizes, the minority is named, and not as missing."""
    world = FakeWorld(4)
    launch(world, {0: at(HERE, 3), 1: at(HERE, 3, has_store=True)})
    seen = world.snapshot(15.0, only=(0, 1))
    ranks = {rank: dataclasses.replace(view, world_size=3, other_sizes={2: 4}) for rank, view in seen.ranks.items()}
    verdict = located_verdict(dataclasses.replace(seen, ranks=ranks))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (2,))
    said = describe_verdict(verdict, 14)
    assert said.startswith(
        "rank 2 has WORLD_SIZE=4 and ranks 0-1 have WORLD_SIZE=3, at 127.0.0.1:29500: init_process_group (default_pg) "
        "has been blocked for 14.0 s"
    )
    assert "not been seen" not in said


def test_world_sizes_without_a_majority() -> None:
    """If both sizes have the same number of ranks, none is named."""
    world = FakeWorld(3)
    launch(world, {0: at(HERE, 2)})
    seen = world.snapshot(15.0, only=(0,))
    ranks = {0: dataclasses.replace(seen.ranks[0], world_size=2, other_sizes={1: 3})}
    verdict = located_verdict(dataclasses.replace(seen, ranks=ranks))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, ())
    assert describe_verdict(verdict, 14).startswith(
        "rank 0 has WORLD_SIZE=2 and rank 1 has WORLD_SIZE=3, at 127.0.0.1:29500: "
    )


FILE = "/scratch/job/store"


def test_file_of_an_earlier_launch() -> None:
    """Ranks misled by a rendezvous file of an earlier launch are not blamed: the file is."""
    world = FakeWorld(3)
    numbers = launch(world, {rank: at(FILE, 3, has_store=rank > 0) for rank in range(3)})
    world.ranks[2].end(numbers[2], 1.1, How.FAILED, "RuntimeError", Blame.CONNECTION)
    world.ranks[2].die(1.2, TapeState.FAILED, "RuntimeError")
    said = describe_verdict(verdict_of(world), 14)
    leads = "the file /scratch/job/store leads rank 2 to ranks that are not there (RuntimeError): it is left from an "
    assert said.startswith(f"{leads}earlier launch, as it seems, and init_process_group has been blocked for 14.0 s")


def test_file_of_an_earlier_launch_and_a_rank_to_come() -> None:
    """The file is also the cause if the misled rank has ended and another rank is still missing."""
    world = FakeWorld(3)
    numbers = launch(world, {rank: at(FILE, 3, has_store=True) for rank in (1, 2)})
    world.ranks[2].end(numbers[2], 9.0, How.FAILED, "RuntimeError", Blame.CONNECTION)
    world.ranks[2].is_seen_to_die(11.0, 1 << 8, TapeState.FAILED, "RuntimeError")
    seen = world.snapshot(15.0, only=(1, 2))
    verdict = examine(RUN, 3, seen.in_order, StallRules(THRESHOLD_NS), seen.taken_ns).verdict
    assert verdict is not None
    assert verdict.ranks == (2,)
    assert describe_verdict(verdict, 14).startswith(
        f"the file {FILE} leads rank 2 to ranks that are not there (RuntimeError)"
    )


def test_file_that_leads_to_a_rank_that_has_died() -> None:
    """If a rank has died before, it is named, since nothing listens at its address either."""
    world = FakeWorld(3)
    numbers = launch(world, {rank: at(FILE, 3, has_store=True) for rank in range(3)})
    world.ranks[0].is_seen_to_die(1.5, signal.SIGKILL)
    world.ranks[2].end(numbers[2], 3.0, How.FAILED, "RuntimeError", Blame.CONNECTION)
    world.ranks[2].die(3.1, TapeState.FAILED, "RuntimeError")
    verdict = verdict_of(world)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (0,))
    assert "was killed by SIGKILL" in describe_verdict(verdict, 14)


def test_file_in_which_all_have_come() -> None:
    """If all ranks wait and none proceeds, the sentence says that the file may be old. An address is not doubted."""
    for address, is_said in ((FILE, True), (HERE, False)):
        world = FakeWorld(2)
        launch(world, {rank: at(address, 2, has_store=True) for rank in range(2)})
        verdict = verdict_of(world)
        assert verdict.kind is VerdictKind.TRANSPORT
        assert ("/scratch/job/store may be left from an earlier launch" in describe_verdict(verdict, 14)) is is_said


def test_address_of_a_process_that_is_gone() -> None:
    """If a rank fails first because no process answers at an address in the store, the sentence states that."""
    world = FakeWorld(3)
    numbers = launch(world, {rank: at("localhost:29500", size=3, has_store=True) for rank in range(3)})
    watching = Watching(world).until(1.05)
    world.ranks[2].end(numbers[2], 1.1, How.FAILED, "RuntimeError", Blame.CONNECTION)
    world.ranks[2].is_seen_to_die(1.2, 1 << 8, TapeState.FAILED, "RuntimeError")
    for rank in (0, 1):
        world.ranks[rank].is_seen_to_die(1.4, signal.SIGTERM)
    watching.until(4.0)
    [verdict] = [given.verdict for _, given in watching.verdicts]
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert "obody answers at an address in the store, which may be left from an earlier start" in describe_verdict(
        verdict, 0.1
    )
