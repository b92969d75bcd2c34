"""The critical path of jobs in simulated time, with exactly known results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.analysis.critical_path.analysis import critical_path_of
from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, CriticalPath, PathKind
from tests.analysis.critical_path.simulated import MS, START_NS, Job, site

STEPS = 12


def path_of(job: Job, without: Sequence[int] = ()) -> CriticalPath:
    """Return the critical path of a job."""
    found = critical_path_of(job.histories(without))
    assert found is not None
    return found


def two_phases(late: dict[int, float], ranks: int = 4, hosts: Sequence[str] = (), **options: object) -> Job:
    """Return a job with steps of two collectives, in which some ranks compute longer before the second."""
    job = Job(ranks, hosts, **options)  # pyright: ignore[reportArgumentType]
    for _ in range(STEPS):
        for rank in range(ranks):
            job.compute(rank, 10)
        job.collective(10, ms=1)
        for rank in range(ranks):
            job.compute(rank, 5 + late.get(rank, 0))
        job.collective(20, ms=0.5)
        job.end_step()
    return job


def causes(found: CriticalPath, *kinds: CauseKind) -> list[Cause]:
    """Return the causes of some kinds."""
    return [cause for cause in found.causes if cause.kind in kinds]


LATENESS = (CauseKind.LINE, CauseKind.RANK, CauseKind.NODE, CauseKind.STAGE)


def test_a_delay_is_found_on_its_rank_and_line() -> None:
    """A delay of 5 ms appears in full on the path, as an excess, and as a gain."""
    found = path_of(two_phases({2: 5.0}))
    assert (found.step_ns, found.path_ns, len(found.steps)) == (21_500_000, 21_500_000, STEPS - 2)
    [cause] = causes(found, *LATENESS)
    assert (cause.kind, cause.ranks, cause.excess_ns, cause.gain_ns) == (CauseKind.LINE, (2,), 5 * MS, 5 * MS)
    assert cause.label is not None
    assert cause.label.site == site(20)
    assert found.by_label[PathKind.COMPUTING, 2, cause.label] == 10 * MS
    [waiting] = {time.waiting_ns for time in found.by_rank if time.rank != 2}
    assert waiting == 5 * MS
    assert {time.waits_for for time in found.by_rank if time.rank != 2} == {((2, 5 * MS),)}


def test_a_delay_hidden_by_another_brings_less() -> None:
    """Of two late ranks, the removal of the later one gains only the time until the other one's arrival."""
    found = path_of(two_phases({2: 5.0, 1: 4.0}))
    gains = {cause.ranks: cause.gain_ns for cause in causes(found, CauseKind.LINE)}
    assert gains == {(2,): 1 * MS}


@given(st.lists(st.floats(0.5, 30), min_size=4, max_size=4), st.integers(0, 3))
@settings(deadline=None, max_examples=30)
def test_predicted_gain_matches_a_run_without_the_cause(times: list[float], rank: int) -> None:
    """A replay without a rank's excess takes as long as a job without the excess, independent of the other ranks."""

    def job(rank_ms: float) -> Job:
        made = Job(4)
        for _ in range(STEPS):
            for other, ms in enumerate(times):
                made.compute(other, rank_ms if other == rank else ms)
                made.collective(10, (other,), ms=0.1)
            made.collective(20, ms=0.5)
            for other in range(4):
                made.compute(other, 1 + other)
            made.collective(30, (0, 1), ms=0.2)
            made.collective(30, (2, 3), ms=0.2)
            made.end_step()
        return made

    others = sorted(ms for other, ms in enumerate(times) if other != rank)
    with_excess, without = path_of(job(others[-1] + 10)), path_of(job(others[1]))
    of_rank = [cause for cause in causes(with_excess, CauseKind.LINE) if cause.ranks == (rank,)]
    [cause] = [cause for cause in of_rank if cause.label is not None and cause.label.site == site(10)]
    assert cause.gain_ns == pytest.approx(with_excess.path_ns - without.path_ns, abs=10)


def test_clocks_of_nodes_are_aligned_by_meetings() -> None:
    """If clocks differ by seconds and drift, offsets are within their bounds and the path is the same."""
    hosts = ["a", "a", "b", "b"]
    shift = 3_000 * MS

    def clock(true_ns: int) -> int:
        return true_ns + shift + (true_ns - START_NS) // 50_000  # 20 µs a second

    straight = path_of(two_phases({2: 5.0}, hosts=hosts))
    found = path_of(two_phases({2: 5.0}, hosts=hosts, clocks={"b": clock}))
    [_, other] = found.clocks
    assert (other.ranks, other.meetings) == ((2, 3), 2 * STEPS)
    assert other.bound_ns is not None
    assert abs(other.offset_ns + shift) <= other.bound_ns <= 2 * MS
    assert found.path_ns == pytest.approx(straight.path_ns, rel=0.001)
    [cause] = causes(found, CauseKind.LINE)
    assert cause.ranks == (2,)
    assert cause.gain_ns == pytest.approx(5 * MS, rel=0.001)


def test_a_slow_node() -> None:
    """If all ranks of one of three nodes are slow, the node is a cause."""
    hosts = ["a", "a", "b", "b", "c", "c"]
    found = path_of(two_phases({2: 4.0, 3: 4.0}, ranks=6, hosts=hosts))
    [node] = causes(found, CauseKind.NODE)
    assert (node.host, node.ranks, node.excess_ns, node.gain_ns) == ("b", (2, 3), 4 * MS, 4 * MS)


def pipeline(stages: dict[int, float], late: dict[int, float]) -> Job:
    """Return a job of two pipelines, ranks 0 → 1 and 2 → 3, whose stages then meet their replicas."""
    job = Job(4)
    for _ in range(STEPS):
        for _ in range(3):
            for first in (0, 2):
                for stage in (0, 1):
                    rank = first + stage
                    if stage:
                        job.message(10, rank - 1, rank)
                    job.compute(rank, stages[stage] + late.get(rank, 0))
                    job.collective(20, (rank,), ms=0.01)
        for members in ((0, 2), (1, 3)):
            job.collective(30, members, ms=0.2)
        job.end_step()
    return job


def test_a_slow_stage_is_no_slow_rank() -> None:
    """A stage that takes longer on all replicas is the cause; a rank is, if only one replica takes longer."""
    [stage] = causes(path_of(pipeline({0: 2, 1: 6}, {})), *LATENESS)
    assert (stage.kind, stage.ranks, stage.excess_ns) == (CauseKind.STAGE, (1, 3), 12 * MS)
    [line] = causes(path_of(pipeline({0: 4, 1: 4}, {3: 3})), *LATENESS)
    assert (line.kind, line.ranks) == (CauseKind.LINE, (3,))


def test_a_message_now_and_then_makes_no_pipeline() -> None:
    """Ranks that send messages in only a few steps are peers: the slow rank is a slow rank, not a slow stage."""
    job = Job(2)
    for step in range(STEPS):
        for rank in range(2):
            job.compute(rank, 10 + 5 * rank)
        job.collective(20)
        if step in (STEPS // 2, STEPS - 1):
            job.message(30, 0, 1)
        job.end_step()
    [cause] = causes(path_of(job), *LATENESS)
    assert (cause.kind, cause.ranks, cause.excess_ns) == (CauseKind.LINE, (1,), 5 * MS)


def test_operations_that_are_waited_for_unseen() -> None:
    """DDP's all_reduces are joined before the optimizer step, and reveal a rank that launches late."""
    job = Job(3)
    for _ in range(STEPS):
        for bucket in range(3):
            for rank in range(3):
                job.compute(rank, 4 + (3 if rank == 1 else 0))
            job.launch(10 + bucket)
        job.join(ms=2)
        job.end_step()
    found = path_of(job)
    assert found.path_ns == pytest.approx(23 * MS, rel=0.001)
    slow = {cause.ranks for cause in causes(found, *LATENESS)}
    assert slow == {(1,)}
    assert found.by_rank[1].on_path_ns == pytest.approx(21 * MS, rel=0.001)
    assert found.by_kind[PathKind.TRANSFER] == pytest.approx(2 * MS, rel=0.001)


def test_a_late_receiver_of_a_broadcast_holds_up_no_other() -> None:
    """In a broadcast, the other ranks wait only for the root."""
    job = Job(3)
    for _ in range(STEPS):
        job.compute(0, 4)
        job.compute(2, 9)
        job.collective(10, operation="broadcast", peer=0, waiting="root", ms=0.1)
        job.end_step()
        for rank in range(3):  # only to keep ranks together
            job.now[rank] = max(job.now)
    found = path_of(job)
    assert dict(found.by_rank[1].waits_for).keys() <= {0}


def test_another_thread_is_not_on_the_path() -> None:
    """A background checkpoint that ends just before a training call did not block it."""
    job = Job(2)
    for _ in range(STEPS):
        for rank in range(2):
            job.record(rank, 90, 1, 9.5, thread=7)
            job.compute(rank, 4)
            job.collective(10, (rank,), ms=0.01)
            job.compute(rank, 6)
        job.collective(20, ms=0.5)
        job.end_step()
    found = path_of(job)
    lines = {label.site.line for _, _, label in found.by_label if label is not None and label.site is not None}
    assert lines == {10, 20}


def test_unsteady_steps_are_left_out() -> None:
    """A step that saves a checkpoint is left out, and the longest stretch without one is analysed."""
    job = Job(2)
    for step in range(20):
        for rank in range(2):
            job.compute(rank, 100 if step == 5 else 10)
        job.collective(10)
        job.end_step()
    found = path_of(job)
    assert (found.unsteady, found.steps[0].step, found.steps[-1].step) == (1, 6, 19)
    [longest] = found.longest
    assert longest.longest_piece is not None
    assert (longest.step, longest.longest_piece.duration_ns) == (5, 100 * MS)


def test_chance_is_no_cause() -> None:
    """In 100 jobs whose ranks differ only by chance, at most two blame a rank."""
    blamed = 0
    for seed in range(100):
        chance, job = random.Random(seed), Job(4)
        for _ in range(STEPS):
            for rank in range(4):
                job.compute(rank, 10 + chance.expovariate(1))
            job.collective(10, ms=0.5)
            job.end_step()
        blamed += bool(causes(path_of(job), *LATENESS))
    assert blamed <= 2


def _act(job: Job, kind: str, line: int, members: Sequence[int], pair: tuple[int, int], spent: Sequence[float]) -> None:
    for rank, ms in enumerate(spent):
        job.compute(rank, ms)
    if kind == "message" and pair[0] != pair[1]:
        job.message(line, *pair)
    else:
        job.collective(line, members)


@st.composite
def programs(draw: st.DrawFn) -> Job:
    """Random programs of up to four ranks."""
    ranks = draw(st.integers(1, 4))
    job = Job(ranks)
    times = st.floats(0, 5)
    actions: list[Callable[[], None]] = []
    for _ in range(draw(st.integers(1, 6))):
        members = tuple(sorted(draw(st.sets(st.integers(0, ranks - 1), min_size=1))))
        spent = draw(st.lists(times, min_size=ranks, max_size=ranks))
        pair = draw(st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1)))
        kind = draw(st.sampled_from(["collective", "message"]))

        line = 10 * (len(actions) + 1)
        actions.append(partial(_act, job, kind, line, members, pair, spent))
    for _ in range(draw(st.integers(0, 6))):
        for act in actions:
            act()
        job.end_step()
    return job


@given(programs())
@settings(deadline=None, max_examples=60)
def test_the_pieces_of_a_path_have_no_gaps(job: Job) -> None:
    """Pieces follow each other from the begin of the step to its end, and their durations add up to the step."""
    found = critical_path_of(job.histories())
    if found is None:
        assert not job.step
        return
    for step in found.steps:
        assert [piece.begin_ns for piece in step.pieces[1:]] == [piece.end_ns for piece in step.pieces[:-1]]
        assert sum(piece.duration_ns for piece in step.pieces) == step.duration_ns
        assert all(piece.duration_ns >= 0 for piece in step.pieces)
    for time in found.by_rank:
        assert min(time.computing_ns, time.waiting_ns, time.transfer_ns) >= 0
    if found.has_steps:
        assert all(0 <= cause.gain_ns <= found.path_ns for cause in found.causes)


def test_without_steps_there_is_a_path_and_no_causes() -> None:
    """Without recorded steps, the path goes through all calls, and a note says so."""
    job = Job(2)
    for _ in range(3):
        job.compute(0, 5)
        job.collective(10)
    found = path_of(job)
    assert (found.has_steps, found.causes, found.path_ns) == (False, (), pytest.approx(10.3 * MS, rel=0.01))
    assert found.notes == ("no steps are recorded: all calls count as one step, and causes are not determined",)


def test_ranks_without_records_are_named() -> None:
    """A note names ranks without records, because other ranks may have waited for them."""
    found = path_of(two_phases({2: 5.0}), without=[2])
    assert found.notes == ("no calls of ranks 2 are known: other ranks may have waited for them",)
    assert not causes(found, *LATENESS)


def test_nothing_at_all() -> None:
    """Without a call there is no path."""
    assert critical_path_of([]) is None
    assert critical_path_of(Job(2).histories()) is None


def test_only_the_newest_steps_count() -> None:
    """The newest whole steps within a bound on calls are analysed."""
    job = two_phases({})
    found = critical_path_of(job.histories(), most_calls=4 * 2 * 64)
    assert found is not None
    assert len(found.steps) == STEPS - 2
    for _ in range(200):
        job.collective(10)
        job.end_step()
    found = critical_path_of(job.histories(), most_calls=4 * 64)
    assert found is not None
    assert (len(found.steps), found.steps[-1].step) == (62, STEPS + 199)
