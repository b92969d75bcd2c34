"""The ends of waits, ranks and rescues in words."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.stall.run_watch import ShortTimeouts
from otel_torchdist.judge.verdict.past.post_mortem import examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict, locate
from otel_torchdist.judge.verdict.wording.ends import describe_rescue
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag, How, RecordKind, TapeState
from otel_torchdist.model.names import AtTimeout
from otel_torchdist.model.rank_state.rescue import Rescue, RescueState
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.runs.diagnosis.timeout_hints import timeout_hints
from tests.support.worlds.fake_world import SECOND, START_NS, THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import located_verdict, spoken

# --- When the backend ends a wait, as sentences and hints on simulated worlds -----------------------------------------


SENTENCE = (
    "rank 2 has not entered all_reduce (sequence 2, default_pg) for 10.0 s; "
    "it was last in broadcast, called in train at train.py:42; 2 of 3 ranks wait in train at train.py:42"
)
HINT = (
    "the timeout of default_pg is 10 min; the longest wait before this one in train at train.py:42 took 3.5 s "
    "(timeout= of init_process_group and new_group; it must exceed every healthy wait)"
)


def everybody(timeout_s: float, then: AtTimeout, backend: str = "nccl") -> GroupView:
    """Build the default group of three ranks, with a timeout."""
    group = group_of(0, 1, 2, description="default_pg")
    name = dataclasses.replace(group.name, timeout_ms=round(timeout_s * 1e3), at_timeout=then, backend=backend)
    return dataclasses.replace(group, name=name)


def late(group: GroupView, now_s: float = 20.0) -> WorldSnapshot:
    """Build rank 1 in a collective since second 10, rank 0 since second 12, and rank 2 missing."""
    world = FakeWorld(3)
    world.meet(group_of(0, 1, 2, description="earlier"), 1.0, "broadcast")
    world.ranks[1].enter(group, 10.0)
    world.ranks[0].enter(group, 12.0)
    return world.snapshot(now_s)


@pytest.mark.parametrize(
    ("backend", "timeout_s", "then", "clause"),
    [
        ("nccl", 600, AtTimeout.ENDS, "NCCL ends the process of rank 1 in 9 min 50 s (timeout 10 min)"),
        ("gloo", 1800, AtTimeout.RAISES, "gloo raises an error in rank 1 in 29 min 50 s (timeout 30 min)"),
        ("cpu:gloo,cuda:gloo", 12.5, AtTimeout.RAISES, "gloo raises an error in rank 1 in 2.5 s (timeout 12.5 s)"),
        ("nccl", 7500, AtTimeout.RAISES, "NCCL raises an error in rank 1 in 2 h 4 min (timeout 2 h 5 min)"),
        (
            "nccl-legacy",
            600,
            AtTimeout.ABORTS,
            "NCCL aborts the operation of rank 1, not its process, in 9 min 50 s (timeout 10 min)",
        ),
        ("nccl", 600, AtTimeout.NOTHING, "NCCL does not end this wait (TORCH_NCCL_ASYNC_ERROR_HANDLING is 0)"),
        ("nccl", 10, AtTimeout.ENDS, "NCCL's timeout of 10 s has passed in rank 1"),
    ],
)
def test_sentence_states_when_the_backend_ends_the_wait(
    backend: str, timeout_s: float, then: AtTimeout, clause: str
) -> None:
    """The sentence states which rank's wait ends first, and how its backend and settings end it."""
    world = late(everybody(timeout_s, then, backend))
    assert spoken(world, located_verdict(world)) == f"{SENTENCE}. {clause[0].upper()}{clause[1:]}"


@pytest.mark.parametrize("group", [everybody(0, AtTimeout.ENDS), everybody(600, AtTimeout.UNKNOWN, "mpi")])
def test_nothing_is_said_about_an_unknown_timeout(group: GroupView) -> None:
    """No deadline is stated without a timeout, or if the backend's reaction is unknown."""
    world = late(group)
    assert spoken(world, located_verdict(world)) == SENTENCE
    assert timeout_hints(located_verdict(world)) == []


def test_each_rank_counts_from_its_own_call_with_its_own_timeout() -> None:
    """Rank 0 entered last, but has the shortest timeout, set after the others' calls."""
    world = FakeWorld(3)
    world.ranks[1].enter(everybody(600, AtTimeout.ENDS), 10.0)
    world.ranks[0].enter(everybody(60, AtTimeout.ENDS), 12.0)
    verdict = located_verdict(world.snapshot(30.0))
    assert verdict.deadline is not None
    assert (verdict.deadline.rank, verdict.deadline.at_ns) == (0, START_NS + 72 * SECOND)


def test_messages_of_gloo_count_from_the_wait_and_those_of_nccl_from_the_call() -> None:
    """A receive posted at second 10 is waited for from second 15 on."""
    for backend, then, ends_s in (("gloo", AtTimeout.RAISES, 75), ("nccl", AtTimeout.ENDS, 70)):
        world = FakeWorld(2)
        group = dataclasses.replace(everybody(60, then, backend), members=frozenset({0, 1}))
        flags = Flag.POINT_TO_POINT | Flag.ASYNC | Flag.END_BY_WAIT
        number = world.ranks[0].enter(group, 10.0, "recv", flags=flags, peer=1, blocking=False)
        world.ranks[0].wait_for(number, 15.0)
        verdict = located_verdict(world.snapshot(30.0))
        assert verdict.deadline is not None
        assert verdict.deadline.at_ns == START_NS + ends_s * SECOND


def test_no_deadline_of_creations_and_of_the_dead() -> None:
    """A group's creation obeys other timeouts, and a backend does not end a dead process."""
    world = FakeWorld(3)
    for rank in (0, 1):
        world.ranks[rank].enter(everybody(600, AtTimeout.ENDS), 10.0, "new_group", kind=RecordKind.RENDEZVOUS)
    assert located_verdict(world.snapshot(25.0)).deadline is None
    then = late(everybody(600, AtTimeout.ENDS))
    verdict = located_verdict(then)
    gone = {rank: dataclasses.replace(view, alive=False) for rank, view in then.ranks.items()}
    assert locate(dataclasses.replace(then, ranks=gone), verdict).deadline is None


def test_no_deadline_after_the_end() -> None:
    """After a job was killed while it hung, `diagnose` states no deadline, but still gives hints."""
    world = late(everybody(600, AtTimeout.ENDS))
    views = [dataclasses.replace(view, alive=False) for view in world.ranks.values()]
    found = examine(world.run, 3, views, StallRules(THRESHOLD_NS // 2), world.taken_ns).verdict
    assert found is not None
    assert found.deadline is None
    assert len(timeout_hints(found)) == 1


def test_no_hints_where_a_rank_has_left() -> None:
    """If a rank has left and gloo ended the job, a longer timeout would change nothing: no hints."""
    group = everybody(1800, AtTimeout.RAISES, "gloo")
    world = FakeWorld(3)
    numbers = [world.ranks[rank].enter(group, 10.0) for rank in (0, 1)]
    world.ranks[2].is_seen_to_die(10.1, 0, TapeState.FINISHED)
    for rank, number in enumerate(numbers):
        world.ranks[rank].end(number, 10.2, How.FAILED, "RuntimeError")
        world.ranks[rank].is_seen_to_die(10.3 + rank, 1 << 8, TapeState.FAILED, "RuntimeError")
    seen = world.snapshot(12.0)
    found = examine(seen.run, 3, list(seen.ranks.values()), StallRules(THRESHOLD_NS), seen.taken_ns).verdict
    assert found is not None
    assert found.ranks == (2,)
    assert timeout_hints(found) == []


def test_no_hints_where_ranks_may_wait_for_each_other() -> None:
    """In a circle, or a possible one, a longer timeout would change nothing: no hints."""
    first = everybody(60, AtTimeout.RAISES, "gloo")
    second = dataclasses.replace(first, name=dataclasses.replace(first.name, nth=1))
    second = dataclasses.replace(second, key=second.name.key)
    world = FakeWorld(3)
    for rank, group in ((0, first), (1, second), (2, second)):
        world.ranks[rank].enter(group, 10.0, blocking=False)
    verdict = located_verdict(world.snapshot(25.0))
    assert verdict.doubt is Doubt.CYCLE
    assert timeout_hints(verdict) == []


def with_longest(world: WorldSnapshot) -> Verdict:
    """Return the verdict with a longest wait of 3.5 s at rank 0's call site."""
    views = {
        rank: dataclasses.replace(
            view,
            open=tuple(dataclasses.replace(one, longest_ns=3_500_000_000 * (rank == 0)) for one in view.open),
        )
        for rank, view in world.ranks.items()
    }
    return located_verdict(dataclasses.replace(world, ranks=views))


@pytest.mark.parametrize(
    ("then", "more"),
    [
        (AtTimeout.ENDS, []),
        (
            AtTimeout.RAISES,
            [
                "TORCH_NCCL_BLOCKING_WAIT is set: a wait blocks the host and raises at the timeout, regardless of "
                "TORCH_NCCL_ASYNC_ERROR_HANDLING; an operation without a wait has no timeout"
            ],
        ),
        (
            AtTimeout.ABORTS,
            [
                "TORCH_NCCL_ASYNC_ERROR_HANDLING is 2: at the timeout the operation is aborted and the process goes on "
                "with what is in its tensors; 3, the default, ends it, so that a launcher can start it again"
            ],
        ),
        (
            AtTimeout.NOTHING,
            [
                "TORCH_NCCL_ASYNC_ERROR_HANDLING is 0: at the timeout nothing happens; 3, the default, ends the "
                "process, so that a launcher can start it again"
            ],
        ),
    ],
)
def test_hints_on_an_absent_rank(then: AtTimeout, more: list[str]) -> None:
    """Hints state the timeout, the longest wait of that line, and unusual settings."""
    assert timeout_hints(with_longest(late(everybody(600, then)))) == [HINT, *more]


def test_hints_on_gloo_are_about_its_timeout_alone() -> None:
    """Hints for gloo mention no variables of NCCL."""
    verdict = located_verdict(late(everybody(1800, AtTimeout.RAISES, "gloo")))
    assert timeout_hints(verdict) == [
        "the timeout of default_pg is 30 min; the longest wait before this one in train at train.py:42 took less than "
        "20 ms (timeout= of init_process_group and new_group; it must exceed every healthy wait)"
    ]


def test_hints_where_the_fault_may_lie_in_the_backend() -> None:
    """If all ranks have entered and none leaves, the hints refer to NCCL's own records."""
    world = FakeWorld(3)
    for rank in range(3):
        world.ranks[rank].enter(everybody(600, AtTimeout.ENDS), 10.0)
    [recorder] = timeout_hints(located_verdict(world.snapshot(30.0)))
    assert recorder == (
        "TORCH_NCCL_DUMP_ON_TIMEOUT (1), TORCH_FR_BUFFER_SIZE (2000), TORCH_FR_DUMP_TEMP_FILE: at the timeout PyTorch "
        "writes its flight recorder there, which otel-torchdist diagnose reads"
    )


def test_hints_where_a_rank_does_not_run_python() -> None:
    """NCCL's watchdog may need the held GIL, and only its monitor thread ends such a process."""
    world = FakeWorld(3)
    world.ranks[1].enter(everybody(600, AtTimeout.ENDS), 10.0)
    world.ranks[0].enter(everybody(600, AtTimeout.ENDS), 12.0)
    world.ranks[2].heartbeat_age_s = 9.0
    _, heartbeat = timeout_hints(located_verdict(world.snapshot(20.0)))
    assert heartbeat == (
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (480): where native code holds the GIL or a CUDA call does not return, "
        "NCCL's watchdog may be stuck as well; its monitor ends the process after that time, unless "
        "TORCH_NCCL_ENABLE_MONITORING is 0"
    )


def test_short_timeout_is_noticed_once() -> None:
    """The first group whose backend may give up before a stall is reported and acted on is noticed; others are not."""
    short = ShortTimeouts(40 * SECOND)
    quiet = [everybody(41, AtTimeout.ENDS), everybody(5, AtTimeout.NOTHING), everybody(0, AtTimeout.ENDS)]
    world = late(quiet[0])

    def with_groups(*groups: GroupView) -> WorldSnapshot:
        keyed = {str(nth): group for nth, group in enumerate(groups)}
        return dataclasses.replace(
            world, ranks={rank: dataclasses.replace(view, groups=keyed) for rank, view in world.ranks.items()}
        )

    assert short.check(with_groups(*quiet)) == []
    [found] = short.check(with_groups(*quiet, everybody(40, AtTimeout.RAISES, "gloo"), everybody(41, AtTimeout.ENDS)))
    assert (found.group.name.timeout_ms, found.backend, found.needed_ns) == (40_000, "gloo", 40 * SECOND)
    assert short.check(with_groups(everybody(1, AtTimeout.ENDS))) == []


# --- What is reported of ranks that were asked to save their state ----------------------------------------------------


def described(*rescues: Rescue | None) -> str:
    """Return the text on the rescues of ranks; None for an unseen rank."""
    known = {rank: rescue for rank, rescue in enumerate(rescues) if rescue is not None}
    return describe_rescue(known, len(rescues))


def test_what_fits_together() -> None:
    """Rescues are usable if every rank has saved the same step."""
    assert described(*[Rescue(RescueState.SAVED, 1200)] * 8) == "rescued: ranks 0-7 at step 1200"


def test_what_does_not() -> None:
    """One rank with another step, or without a rescue, makes all unusable, and is named with the reason."""
    saved = Rescue(RescueState.SAVED, 1200)
    assert described(saved, Rescue(RescueState.SAVED, 1199), saved) == (
        "rescued, but not usable: ranks 0,2 at step 1200; rank 1 at step 1199"
    )
    others = [Rescue(state, 1200) for state in RescueState if state is not RescueState.SAVED]
    assert described(saved, None, *others) == (
        "rescued, but not usable: rank 0 at step 1200; rank 1 is not seen; rank 2 did not answer; "
        "rank 3 had not ended; rank 4 refused, in the step of an optimizer; rank 5 failed, as its log shows; "
        "rank 6 went on meanwhile; rank 7 took too long; rank 8 died before"
    )
    assert described(Rescue(), Rescue()) == "not rescued: ranks 0-1 did not answer"


def test_word_on_the_tape() -> None:
    """State and step fit into one word. An unknown state of a later version counts as none."""
    for state in RescueState:
        assert Rescue.decode(Rescue(state, 123_456_789_012).encode()) == Rescue(state, 123_456_789_012)
    assert Rescue.decode(Rescue(RescueState.SAVED, 1 << 60).encode()).state is RescueState.SAVED
    assert Rescue(RescueState.SAVED, 1 << 60).encode() < 1 << 52
    assert Rescue.decode(15) == Rescue()


def test_rank_that_dies() -> None:
    """A finished rescue outlives its rank. A rank that dies before it finishes saves nothing."""
    view = FakeWorld(1).snapshot(1.0).ranks[0]
    for rescue, expected in (
        (Rescue(RescueState.SAVED, 3), Rescue(RescueState.SAVED, 3)),
        (Rescue(RescueState.RUNNING, 3), Rescue(RescueState.DEAD, 3)),
        (Rescue(), Rescue(RescueState.DEAD)),
    ):
        assert dataclasses.replace(view, alive=False, rescue=rescue).rescued == expected
        assert dataclasses.replace(view, rescue=rescue).rescued == rescue
