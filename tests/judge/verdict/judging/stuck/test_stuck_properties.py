"""Random jobs on devices, with ends recorded late, and ranks read at different moments.

The model: every rank enqueues its operations in order, and its device runs them one after the other; an operation ends
when all members have begun it. Ends are recorded late.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from otel_torchdist.judge.verdict.judging.stuck import TRAIL_NS
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.examples import few_and_many
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, FakeRank, group_of
from tests.support.worlds.judging import verdicts

SIZE = 4
NEVER_S = 1e6
TAKES_S = 0.01
LATE_S = TRAIL_NS / SECOND - 0.1
"""How late an end may be seen, and how much earlier than others a rank may be read, together."""


@dataclass
class Job:
    """A random program, with the times at which each rank enqueues, begins and ends each operation.

    Attributes:
        program: Group and name of each operation, in the order of all ranks.
        enqueued: Time in seconds, by operation and rank.
        begun: The same.
        ended: The same.
        on_device: Whether devices run the operations, rather than hosts that block in each call.
    """

    program: list[tuple[GroupView, str]]
    on_device: bool
    enqueued: list[dict[int, float]] = field(default_factory=list[dict[int, float]])
    begun: list[dict[int, float]] = field(default_factory=list[dict[int, float]])
    ended: list[dict[int, float]] = field(default_factory=list[dict[int, float]])

    def seen_at(self, now_s: float, read_before_s: dict[int, float], unseen_s: dict[int, float]) -> WorldSnapshot:
        """Take a snapshot at `now_s`, with each rank read earlier and ends recorded late by the given delays."""
        views = {
            rank: self._rank(rank, now_s - read_before_s[rank], unseen_s[rank]).view(now_s) for rank in range(SIZE)
        }
        return WorldSnapshot(RUN, START_NS + round(now_s * SECOND), views)

    def _rank(self, rank: int, read_s: float, unseen_s: float) -> FakeRank:
        fake = FakeRank(rank)
        flags = Flag.ON_DEVICE if self.on_device else Flag(0)
        for index, (group, name) in enumerate(self.program):
            if rank not in group.members or self.enqueued[index][rank] > read_s:
                continue
            number = fake.enter(group, self.enqueued[index][rank], name, flags=flags, blocking=not self.on_device)
            begun_s, ended_s = self.begun[index][rank], self.ended[index][rank]
            if self.on_device and begun_s <= read_s:
                fake.begin_on_device(number, begun_s)
            if (
                ended_s + (unseen_s if self.on_device else 0.0) <= read_s
            ):  # a host records the end of a blocking call immediately
                fake.end(number, ended_s, How.WATCHDOG if self.on_device else How.CALL)
        return fake


@st.composite
def jobs(draw: st.DrawFn, on_device: bool, broken: int | None = None) -> Job:
    """Generate a job in which ranks are often late. The device of rank `broken`, if any, breaks at some time.

    A broken device stops in the middle of an operation. Members to which it has sent their data leave the operation.
    The other members, and the rank itself, do not.
    """
    everybody = group_of(*range(SIZE), description="default_pg")
    groups = [everybody, group_of(0, 1, nth=1), group_of(1, 2, 3, nth=2), group_of(2, 3, nth=3)]
    names = st.sampled_from(["all_reduce", "all_gather_into_tensor", "barrier", "all_to_all_single", "broadcast"])
    job = Job(draw(st.lists(st.tuples(st.sampled_from(groups), names), min_size=1, max_size=12)), on_device)
    stops_in = draw(st.integers(0, len(job.program))) if broken is not None else len(job.program)
    host_s, free_s = dict.fromkeys(range(SIZE), 0.0), dict.fromkeys(range(SIZE), 0.0)
    for index, (group, _) in enumerate(job.program):
        for rank in group.members:
            host_s[rank] += draw(st.sampled_from([0.0, 0.0, 0.0, 0.1, 5.0, 15.0, 40.0]))
        enqueued = {rank: host_s[rank] for rank in group.members}
        begun = {rank: max(enqueued[rank], free_s[rank]) for rank in group.members}
        meet_s = max(begun.values()) + TAKES_S
        ended = dict.fromkeys(group.members, meet_s)
        if broken in group.members and index >= stops_in:
            reached = draw(st.sets(st.sampled_from(sorted(group.members)))) if free_s[broken] < NEVER_S else set[int]()
            ended = {rank: meet_s if rank in reached - {broken} else NEVER_S for rank in group.members}
        free_s |= ended
        if not on_device:
            host_s |= ended
        job.enqueued.append(enqueued)
        job.begun.append(begun)
        job.ended.append(ended)
    return job


def moments(data: st.DataObject, job: Job) -> tuple[float, dict[int, float], dict[int, float]]:
    """Generate a time near an event, the delay with which each rank was read, and the delay of recorded ends."""
    events = [at for one in (*job.ended, *job.begun) for at in one.values() if at < NEVER_S]
    now_s = data.draw(st.sampled_from(sorted({*events, 0.0}))) + data.draw(st.sampled_from([0.0, 0.5, 2.0, 11.0, 30.0]))
    each = st.floats(0.0, LATE_S / 2)
    early = {rank: data.draw(each) for rank in range(SIZE)}
    unseen = {rank: data.draw(each) for rank in range(SIZE)}
    return now_s, early, unseen


@few_and_many(40, 250, st.booleans(), st.data())
def test_in_healthy_jobs_no_rank_is_stuck(on_device: bool, data: st.DataObject) -> None:
    """In healthy jobs, no rank is stuck, whatever the delays of ranks, records and reads."""
    job = data.draw(jobs(on_device))
    for verdict in verdicts(job.seen_at(*moments(data, job))).values():
        assert verdict is None or verdict.kind is not VerdictKind.STUCK


@few_and_many(40, 250, st.integers(0, SIZE - 1), st.data())
def test_a_device_that_breaks_in_an_operation(broken: int, data: st.DataObject) -> None:
    """If a device breaks during an operation, at most its rank is named."""
    job = data.draw(jobs(on_device=True, broken=broken))
    for verdict in verdicts(job.seen_at(*moments(data, job))).values():
        assert verdict is None or verdict.kind is not VerdictKind.STUCK or verdict.ranks == (broken,)


@few_and_many(40, 150, st.integers(0, SIZE - 1), st.data())
def test_a_device_whose_ends_are_no_longer_seen(broken: int, data: st.DataObject) -> None:
    """If ends on a device are no longer recorded from some time on, at most its rank is named."""
    job = data.draw(jobs(on_device=True))
    now_s, early, unseen = moments(data, job)
    blind_s = data.draw(st.floats(0.0, now_s + 1.0))
    for one in job.ended:
        if broken in one and one[broken] > blind_s:
            one[broken] = NEVER_S
    for verdict in verdicts(job.seen_at(now_s, early, unseen)).values():
        assert verdict is None or verdict.kind is not VerdictKind.STUCK or verdict.ranks == (broken,)
