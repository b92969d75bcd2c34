"""Findings on stragglers: reported once with their cost, ended when over, and never on other ranks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.judge.stall.findings.restraint import Latenesses
from otel_torchdist.judge.stall.findings.stragglers import MIN_BLAME, MIN_SHARE, Straggler, Stragglers
from otel_torchdist.judge.world.following.channels import LENGTH, ArrivalLog
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.reports.finding import JudgedWorld
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.detectors import EVERYBODY
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld

CHANNEL = Channel(RecordKind.OPERATION, EVERYBODY.key)
STEP_S = 0.1


class Steps:
    """Four ranks with a collective at the end of each step, and a watch that polls them once a second."""

    def __init__(self, late_s: Callable[[int, int], float], calls: int = 1) -> None:
        """Delay rank `r` by `late_s(n, r)` seconds in each of the `calls` calls of step `n`."""
        self.late_s, self.calls = late_s, calls
        self.watch = Stragglers()
        self.found: list[Straggler] = []
        self.gone: list[tuple[Channel, int]] = []
        self.last: dict[int, int] = dict.fromkeys(range(4), 0)
        self.late_ns: dict[int, int] = dict.fromkeys(range(4), 0)
        self._world = FakeWorld(4)
        self._world.meet(EVERYBODY, 0.0)
        self._logs = [ArrivalLog() for _ in range(4)]
        self._now_s = 1.0
        self.data_share = dict.fromkeys(range(4), 0.0)
        self._step = self._sequence = 0

    def run(self, seconds: float) -> Steps:
        """Let time pass."""
        until_s, looked_s = self._now_s + seconds, self._now_s
        while self._now_s < until_s:
            late = [0.0]
            for _ in range(self.calls):
                self._sequence += 1
                late = [self.late_s(self._step, rank) for rank in range(4)]
                for log, one in zip(self._logs, late, strict=True):
                    log.ended(self._sequence, START_NS + round((self._now_s + one) * SECOND))
            self._now_s += STEP_S + max(late)
            self._step += 1
            if self._now_s - looked_s >= 1.0:
                looked_s = self._now_s
                self._look()
        return self

    def _look(self) -> None:
        snapshot = self._world.snapshot(self._now_s)
        views = {
            rank: dataclasses.replace(
                view,
                arrivals={CHANNEL: self._logs[rank].windows},
                groups={EVERYBODY.key: EVERYBODY},
                data_wait_ns=round(self.data_share[rank] * self._now_s * SECOND),
            )
            for rank, view in snapshot.ranks.items()
        }
        self.found += self.watch.find(WorldSnapshot(snapshot.run, snapshot.taken_ns, views))
        self.gone += self.watch.gone
        for lateness in self.watch.lateness:
            for rank in range(4):
                self.last[rank] += lateness.last.get(rank, 0)
                self.late_ns[rank] += lateness.late_ns.get(rank, 0)


def test_rank_that_takes_a_third_longer() -> None:
    """One rank is late by 30 ms in each step of 100 ms: named once, with the others' share of lost time."""
    steps = Steps(lambda _, rank: 0.030 if rank == 2 else 0.0).run(60)
    [found] = steps.found
    assert (found.rank, found.group, found.operation, found.compared) == (2, EVERYBODY, "all_reduce", (0, 1, 2, 3))
    assert abs(found.share - 0.030 / 0.130) < 0.02
    assert abs(found.mean_late_s - 0.030) < 0.001
    assert found.last == found.calls
    assert steps.gone == []


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        (
            0.35,
            0.05,
            "rank 2 is a straggler because it waits for data (35% of its time, the others 5%): it came last in ",
        ),
        (0.35, 0.30, "rank 2 is a straggler: it came last in "),
        (0.0, 0.0, "rank 2 is a straggler: it came last in "),
    ],
)
def test_straggler_that_waits_for_data(own: float, others: float, said: str) -> None:
    """The data wait is stated as the reason if it exceeds the others' by about the time that they lose."""
    steps = Steps(lambda _, rank: 0.05 if rank == 2 else 0.0)
    steps.data_share = {rank: own if rank == 2 else others for rank in range(4)}
    [straggler] = steps.run(60).found
    found = straggler.finding(JudgedWorld(FakeWorld(4).snapshot(1.0), run=1))
    assert found.sentence.startswith(said)


def test_straggler_that_recovers() -> None:
    """A rank is late for half a minute: the finding starts and ends, and starts again when the rank is late again."""
    steps = Steps(lambda step, rank: 0.05 if rank == 1 and step % 600 < 200 else 0.0).run(150)
    assert [found.rank for found in steps.found] == [1] * len(steps.found)
    assert len(steps.found) >= 2
    assert steps.gone == [(CHANNEL, 1)] * len(steps.gone)
    assert len(steps.found) - len(steps.gone) in (0, 1)


def test_late_in_the_first_call_of_a_step_only() -> None:
    """The rank is late only in the first of ten calls per step; the order in the other nine is random. It is named."""
    noise = random.Random(1)
    steps = Steps(lambda _, rank: noise.random() * 0.0005, calls=9)
    plain = steps.late_s
    first = iter(range(10**9))
    steps.late_s = lambda step, rank: 0.05 if rank == 3 and next(first) % 9 == 0 else plain(step, rank)
    steps.run(60)
    assert {found.rank for found in steps.found} == {3}


def test_ranks_that_are_late_in_turns() -> None:
    """All ranks are late equally often: none is named, but the last arrivals are counted."""
    steps = Steps(lambda step, rank: 0.05 if step % 4 == rank else 0.0).run(60)
    assert steps.found == []
    assert max(steps.last.values()) - min(steps.last.values()) <= LENGTH
    assert min(steps.late_ns.values()) > 0


def test_lateness_that_costs_little() -> None:
    """A rank that is always last, but only by a few percent of a step, is not reported."""
    steps = Steps(lambda _, rank: MIN_SHARE * STEP_S * 0.8 if rank == 0 else 0.0).run(60)
    assert steps.found == []
    assert steps.last[0] == sum(steps.last.values())


def test_uneven_data_of_two_ranks() -> None:
    """The last rank is random for hours: none is named, but the lost time is counted."""
    noise = random.Random(3)
    steps = Steps(lambda _, rank: STEP_S * noise.uniform(0.5, 1.5) if rank < 2 else 0.0)
    assert steps.run(2_500).found == []
    assert min(steps.last[0], steps.last[1]) > 1_000


def test_one_slow_rank_in_uneven_data() -> None:
    """Step times vary between 0.5 and 1.5 times the usual, and one rank takes 0.67 longer: it is named."""
    noise = random.Random(5)
    uneven = lambda _, rank: STEP_S * (noise.uniform(0.5, 1.5) + (0.67 if rank == 2 else 0.0))  # noqa: E731
    assert {found.rank for found in Steps(uneven).run(300).found} == {2}


def test_other_ranks_that_pause_now_and_then() -> None:
    """Rank 2 is late by a third of each step, and rank 0 pauses for 2 s every 30 s: rank 2 is named within 30 s."""
    late_s = lambda step, rank: 0.05 if rank == 2 else 2.0 if rank == 0 and step % 200 == 20 else 0.0  # noqa: E731
    assert {found.rank for found in Steps(late_s).run(30).found} == {2}


def test_late_in_one_call_of_a_hundred() -> None:
    """A rank is late by a second in one of a hundred calls per step: named once enough calls are counted."""
    steps = Steps(lambda _, rank: 0.0, calls=100)
    calls = iter(range(10**9))
    steps.late_s = lambda step, rank: 1.0 if rank == 3 and next(calls) % 100 == 0 else 0.0
    assert {found.rank for found in steps.run(120).found} == {3}


@given(st.permutations(range(LENGTH)), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_calls_that_end_in_any_order(order: list[int], window: int) -> None:
    """Asynchronous calls end out of order within two windows: arrivals are still in the order of the calls."""
    log = ArrivalLog()
    for place in order:
        log.ended(window * LENGTH + place + 1, 1_000 + place)
    [found] = log.windows
    assert (found.number, found.times) == (window, tuple(1_000 + place for place in range(LENGTH)))


def test_calls_that_are_lost() -> None:
    """A call without an end excludes its window. The other windows are complete, and memory is bounded."""
    log = ArrivalLog()
    for sequence in range(1, 20 * LENGTH + 1):
        if sequence != 5 * LENGTH + 7:
            log.ended(sequence, sequence)
    assert [window.number for window in log.windows] == [16, 17, 18, 19]


P2P = Flag.POINT_TO_POINT


class Pipeline(Steps):
    """Steps in which ranks exchange messages before the collective."""

    def __init__(self, late_s: Callable[[int, int], float], sends: list[tuple[int, int]], every: int = 1):
        super().__init__(late_s)
        self._sends = sends
        self._every = every
        self._sent_until = 0

    def _look(self) -> None:
        for step in range(self._sent_until, self._step):
            for source, destination in self._sends if step % self._every == 0 else ():
                rank = self._world.ranks[source]
                number = rank.enter(EVERYBODY, self._now_s, "send", flags=P2P, peer=destination)
                rank.end(number, self._now_s)
        self._sent_until = self._step
        for rank in self._world.ranks:
            rank.step = self._step
        super()._look()


FORTH_AND_BACK = [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)]
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


def test_first_stage_of_a_pipeline_is_no_straggler() -> None:
    """The last stage always comes last, because its backward is the last: counted, but not called a straggler."""
    steps = Pipeline(lambda _, rank: 0.03 if rank == 0 else 0.0, FORTH_AND_BACK).run(60)
    assert steps.found == []
    assert steps.last[0] == sum(steps.last.values()) > 0


def test_last_stage_of_a_pipeline_without_backward() -> None:
    """The last stage only receives, and always comes last."""
    steps = Pipeline(lambda _, rank: 0.03 if rank == 3 else 0.0, [(0, 1), (1, 2), (2, 3)]).run(60)
    assert steps.found == []


def test_straggler_in_a_ring() -> None:
    """All positions in a ring are equivalent, so a rank that is always last is slower."""
    steps = Pipeline(lambda _, rank: 0.03 if rank == 2 else 0.0, RING).run(60)
    assert [found.rank for found in steps.found] == [2]


def test_straggler_among_ranks_that_sent_to_each_other_once() -> None:
    """Messages at the start of a job do not affect later steps."""
    steps = Pipeline(lambda _, rank: 0.03 if rank == 2 else 0.0, FORTH_AND_BACK, every=10_000).run(60)
    assert [found.rank for found in steps.found] == [2]


@pytest.mark.parametrize("every", [3, 20])
def test_straggler_among_ranks_that_send_now_and_then(every: int) -> None:
    """Ranks that exchange a metric every few steps are no pipeline stages, so the straggler among them is named."""
    steps = Pipeline(lambda _, rank: 0.03 if rank == 2 else 0.0, FORTH_AND_BACK, every=every).run(60)
    assert [found.rank for found in steps.found] == [2]


# --- Chance in the comparison of ranks: few ranks, uneven data, a few calls that are very late ------------------------


TRIES = 20_000
CALLS = 64


def uniform(chance: random.Random) -> float:
    """Sentences of any length."""
    return chance.uniform(0.5, 1.5)


def heavy(chance: random.Random) -> float:
    """Return a lateness from a distribution with a heavy tail."""
    return 1.0 + min(0.02 * chance.paretovariate(1.1), 8.0)


def rare(chance: random.Random) -> float:
    """Make one call in sixty late by several steps, like a rank that still has data when the others have none."""
    return 1.0 + chance.gauss(0.0, 0.01) + (5.0 if chance.random() < 1 / 60 else 0.0)


def compare(chance: random.Random, size: int, takes: Callable[[random.Random], float], calls: int) -> Latenesses:
    """Count calls in which each rank has an independent arrival time."""
    found = Latenesses()
    for _ in range(calls):
        times = [takes(chance) for _ in range(size)]
        before, latest = sorted(times)[-2:]
        found.add(times.index(latest), round((latest - before) * 1e9))
    return found


@pytest.mark.parametrize("takes", [uniform, heavy, rare])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_ranks_that_are_alike(takes: Callable[[random.Random], float], size: int) -> None:
    """By its share alone, the rank that came last most often would be blamed, but here that is always chance."""
    chance = random.Random(size)
    blamed = 0
    for _ in range(TRIES // CALLS):
        found = compare(chance, size, takes, CALLS)
        rank, late_ns = found.latest
        blamed += late_ns >= MIN_BLAME * sum(found.late_ns.values()) and late_ns >= MIN_SHARE * CALLS * 1e9
        assert found.is_chance(rank)
    if (takes, size) in ((uniform, 2), (rare, 2), (rare, 3)):
        assert blamed > 0


def test_rank_that_is_always_last() -> None:
    """One window of calls is enough evidence, even for two ranks."""
    found = Latenesses()
    for _ in range(CALLS):
        found.add(1, 30_000_000)
    assert not found.is_chance(1)
    assert found.is_chance(0)


def test_break_of_another_rank() -> None:
    """A rank that is 0.1 s late in each of 60 calls is not hidden by another rank that is 10 s late once."""
    found = Latenesses()
    for _ in range(60):
        found.add(1, 100_000_000)
    found.add(3, 10_000_000_000)
    assert not found.is_chance(1)
    assert found.is_chance(3)


def test_two_slow_ranks_of_many() -> None:
    """Two ranks are late in random alternation, and the others never: neither is named."""
    chance = random.Random(11)
    for _ in range(TRIES // CALLS):
        found = Latenesses()
        for _call in range(CALLS):
            found.add(chance.randrange(2), round(chance.uniform(0, 1e9)))
        assert found.is_chance(found.latest[0])


def test_few_calls_that_are_very_late() -> None:
    """A few very late calls are no evidence, whatever their cost, and do not change the usual lateness."""
    found = Latenesses()
    for _ in range(4):
        found.add(1, 60_000_000_000)
    for call in range(60):
        found.add(call % 4, 1_000_000)
    assert found.is_chance(1)
    assert found.usual_ns(1) == 15_000_000


def test_counts_that_are_put_together() -> None:
    """Counting in several parts gives the same result as counting at once."""
    chance = random.Random(7)
    calls = [(chance.randrange(3), chance.randrange(10**9)) for _ in range(200)]
    whole, parts = Latenesses(), Latenesses()
    for start in range(0, 200, 50):
        part = Latenesses()
        for call in calls[start : start + 50]:
            whole.add(*call)
            part.add(*call)
        parts.update(part)
    for rank in range(3):
        assert whole.usual_ns(rank) == parts.usual_ns(rank)
        assert whole.is_chance(rank) is parts.is_chance(rank)
    assert (whole.calls, whole.last, whole.late_ns, whole.latest) == (
        parts.calls, parts.last, parts.late_ns, parts.latest,
    )  # fmt: skip
