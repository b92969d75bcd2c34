"""Which steps are exported by a rank."""

from __future__ import annotations

import itertools

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBasedTraceIdRatio, Sampler, SamplingResult

from otel_torchdist.model.ids import trace_id_of_step
from otel_torchdist.telemetry.spans.sampling import SpanBudget, StepSampler

RUN = 0xABCDEF
SECOND = 1_000_000_000
PLENTY = 1_000_000


def kept_steps(sampler: StepSampler, steps: int, spans: int = 1, steps_per_second: float = 1.0) -> set[int]:
    """The steps that a sampler keeps when each has `spans` spans in one segment."""
    times = [(step, int(step / steps_per_second * SECOND)) for step in range(steps)]
    return {step for step, at_ns in times if sampler.is_kept(RUN, step, at_ns, spans)}


def test_the_sampler_of_the_environment_decides_by_the_trace_of_the_step() -> None:
    """All ranks keep the same steps without communicating, because they decide on the same trace."""
    ratio = ParentBasedTraceIdRatio(0.25)
    kept = [kept_steps(StepSampler(ratio, PLENTY, rank, world_size=8), 400) for rank in (0, 5)]
    assert kept[0] == kept[1]
    assert 60 < len(kept[0]) < 140
    assert kept[0] == {step for step in range(400) if trace_id_of_step(RUN, step) & (2**64 - 1) < 2**62}


def test_the_sampler_is_asked_once_a_step_and_segments_share_the_answer() -> None:
    """A step is exported as a whole or not at all, however many segments it has."""

    class EveryOther(Sampler):
        asked = 0

        def should_sample(self, *args: object, **kwargs: object) -> SamplingResult:
            self.asked += 1
            return (ALWAYS_ON if self.asked % 2 else ALWAYS_OFF).should_sample(None, 1, "")

        def get_description(self) -> str:
            return "every other"

    every_other = EveryOther()
    sampler = StepSampler(every_other, PLENTY, rank=0, world_size=1)
    answers = [sampler.is_kept(RUN, step, step * SECOND, 1) for step in range(4) for _ in range(3)]
    assert answers == [True] * 3 + [False] * 3 + [True] * 3 + [False] * 3
    assert every_other.asked == 4


def test_a_step_with_an_incident_is_kept_from_then_on() -> None:
    """`keep` before the end of the first segment keeps the whole step, later the rest of it."""
    sampler = StepSampler(ALWAYS_OFF, PLENTY, rank=0, world_size=1)
    assert not sampler.is_kept(RUN, 1, 0, 1)
    sampler.keep(1)
    sampler.keep(2)
    assert sampler.is_kept(RUN, 1, 0, 1)
    assert sampler.is_kept(RUN, 2, 0, 1)
    assert not sampler.is_kept(RUN, 3, 0, 1)


def test_ranks_that_halve_differently_still_keep_common_steps() -> None:
    """What a busy rank keeps, a quiet rank keeps too."""
    busy = kept_steps(StepSampler(ALWAYS_ON, 100, 0, 2), 400, spans=1_000)
    quiet = kept_steps(StepSampler(ALWAYS_ON, 100, 1, 2), 400, spans=300)
    later = set(range(20, 400))
    assert busy & later < quiet & later
    assert len(busy & later) > 5


@pytest.mark.parametrize("spans", [100, 1_000, 20_000])
def test_a_rank_stays_within_its_budget(spans: int) -> None:
    """After the first seconds no more spans leave than the budget allows, and not needlessly few."""
    limit = 2_000
    sampler = StepSampler(ALWAYS_ON, limit, rank=0, world_size=1)
    kept = [step for step in kept_steps(sampler, 6_000, spans, steps_per_second=10) if step >= 100]
    rate = len(kept) * spans / 590
    needed = min(limit, 10 * spans)
    assert needed / 3 < rate < limit * 1.15


@pytest.mark.parametrize("world_size", [1, 64, 65, 200, pytest.param(4_096, marks=pytest.mark.thorough)])
def test_a_step_of_a_large_world_shows_some_ranks(world_size: int) -> None:
    """At most 64 ranks, evenly spread, and over time each rank has its turn."""
    ranks = range(world_size)
    samplers = [StepSampler(ALWAYS_ON, PLENTY, rank, world_size) for rank in ranks]
    seen: set[int] = set()
    for step in range(40):
        shown = [rank for rank in ranks if samplers[rank].is_kept(RUN, step, 0, 1)]
        assert min(world_size, 64) // 2 <= len(shown) <= 64
        assert len({b - a for a, b in itertools.pairwise(shown)}) <= 1
        seen.update(shown)
    assert len(seen) > world_size / 3


def test_the_budget_does_not_swing() -> None:
    """A rate that is just below the limit keeps the halvings that it needed a little above it."""
    budget = SpanBudget(1_000)
    changes: list[int] = []
    for second in range(200):
        budget.begin_step(second * SECOND)
        changes.append(budget.halvings)
        budget.count(1_050 if second % 20 < 10 else 950)
    assert set(changes[20:]) == {1}


def test_the_budget_recovers() -> None:
    """When the load falls, halvings are taken back one by one."""
    budget = SpanBudget(1_000)
    for second in range(30):
        budget.begin_step(second * SECOND)
        budget.count(16_000)
    assert budget.halvings == 4
    for second in range(30, 60):
        budget.begin_step(second * SECOND)
        budget.count(100)
    assert budget.halvings == 0


def test_a_burst_is_met_after_a_second() -> None:
    """More than a window's worth of spans is not waited out, but a few steps are too few to estimate a rate."""
    budget = SpanBudget(1_000)
    budget.begin_step(0)
    budget.count(8_000)
    budget.begin_step(SECOND // 10)
    assert budget.halvings == 0
    budget.begin_step(SECOND)
    assert budget.halvings == 3
