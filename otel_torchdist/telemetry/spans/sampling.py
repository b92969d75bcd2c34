"""Samples the steps of a rank for export: whole steps, with equal decisions on all ranks, without communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Sampler

from otel_torchdist.model.ids import trace_id_of_step
from otel_torchdist.telemetry import semconv

MAX_RANKS: Final = 64
"""Upper bound on the ranks exported for a healthy step: every n-th rank of a larger world, from an offset per step."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The decisions of a sampler, for its successor.

    Attributes:
        step: The last decided step.
        is_candidate: Whether the step was sampled before the budget was applied.
        is_kept: Whether the step is exported.
        incident_steps: Steps in which an incident began.
        halvings: See `SpanBudget.halvings`.
    """

    step: int | None
    is_candidate: bool
    is_kept: bool
    incident_steps: frozenset[int]
    halvings: int


class StepSampler:
    """The sampler of one rank. It decides once per step, at the end of the step's first segment.

    A step is exported if an incident began in it (`keep`), or if all of these are true:

    - The sampler of the environment or the provider samples its trace.
    - This rank is among the ranks exported for the step.
    - Its trace id is in the lowest 1/2^k of all trace ids, where k keeps this rank's spans within the budget. Steps
      kept at k+1 are also kept at k, so ranks with different k still have common steps.
    """

    def __init__(self, sampler: Sampler, spans_per_second: int, rank: int, world_size: int) -> None:
        """Sample for `rank`, with a budget of `spans_per_second`."""
        self._sampler = sampler
        self._budget = SpanBudget(spans_per_second)
        self._rank = rank
        self._stride = -(-world_size // MAX_RANKS)
        self._incident_steps: set[int] = set()
        self._step: int | None = None
        self._is_candidate = False
        self._is_kept = False

    @property
    def state(self) -> SamplerState:
        """The decisions so far."""
        return SamplerState(
            self._step, self._is_candidate, self._is_kept, frozenset(self._incident_steps), self._budget.halvings
        )

    def resume(self, state: SamplerState) -> None:
        """Continue from another sampler's state. Its decision holds for the rest of the step."""
        self._step, self._is_candidate, self._is_kept = state.step, state.is_candidate, state.is_kept
        self._incident_steps = set(state.incident_steps)
        self._budget.halvings = state.halvings

    def keep(self, step: int) -> None:
        """Export the remaining segments of `step`, because an incident began in it."""
        self._incident_steps.add(step)

    def is_kept(self, run_id: int, step: int, at_ns: int, spans: int) -> bool:
        """Return whether a segment is exported. Called in the order of steps.

        Args:
            run_id: The run that all ranks agree on.
            step: The step of the segment.
            at_ns: Monotonic time of the segment's end.
            spans: Number of spans of the segment, for the budget.
        """
        if step != self._step:
            self._decide(run_id, step, at_ns)
        if self._is_candidate:
            self._budget.count(spans)
        return self._is_kept or step in self._incident_steps

    def _decide(self, run_id: int, step: int, at_ns: int) -> None:
        self._step = step
        self._incident_steps = {kept for kept in self._incident_steps if kept >= step}
        trace_id = trace_id_of_step(run_id, step)
        self._budget.begin_step(at_ns)
        self._is_candidate = self._exports_rank(trace_id) and self._is_sampled(trace_id, step)
        self._is_kept = self._is_candidate and trace_id >> (128 - self._budget.halvings) == 0

    def _exports_rank(self, trace_id: int) -> bool:
        return (self._rank + (trace_id >> 64)) % self._stride == 0

    def _is_sampled(self, trace_id: int, step: int) -> bool:
        name = semconv.STEP_SPAN.format(rank=self._rank)
        result = self._sampler.should_sample(
            Context(), trace_id, name, attributes={semconv.RANK: self._rank, semconv.STEP: step}
        )
        return result.decision.is_sampled()


WINDOW_S: Final = 5.0
MIN_WINDOW_S: Final = 1.0
"""Shortest window that can exceed the budget: a rate over less time would only show a burst."""
RECOVERY_SHARE: Final = 0.8
MAX_HALVINGS: Final = 32


class SpanBudget:
    """Limits the spans per second of one rank, by exporting one of 2^`halvings` steps.

    The rate without a limit is measured in windows of 5 s of the rank's clock. After a window above the budget, the
    exported rate is halved as often as needed. Later windows undo one halving each, and only if the resulting rate is
    at least 20 % below the budget, to avoid oscillation.

    Attributes:
        halvings: One of 2^halvings steps is exported.
    """

    def __init__(self, spans_per_second: int) -> None:
        self.halvings = 0
        self._limit = spans_per_second
        self._spans = 0
        self._since_ns: int | None = None

    def count(self, spans: int) -> None:
        """Count spans that would be exported without a limit."""
        self._spans += spans

    def begin_step(self, at_ns: int) -> None:
        """Begin a step. Only here does `halvings` change."""
        if self._since_ns is None:
            self._since_ns = at_ns
            return
        elapsed_s = (at_ns - self._since_ns) / 1e9
        if elapsed_s < (WINDOW_S if self._spans <= self._limit * WINDOW_S else MIN_WINDOW_S):
            return
        rate = self._spans / elapsed_s
        self._since_ns = at_ns
        self._spans = 0
        needed = self._halvings_for(rate)
        if needed > self.halvings:
            self.halvings = needed
        elif self.halvings and rate / 2 ** (self.halvings - 1) <= RECOVERY_SHARE * self._limit:
            self.halvings -= 1

    def _halvings_for(self, rate: float) -> int:
        halvings = 0
        while rate / 2**halvings > self._limit and halvings < MAX_HALVINGS:
            halvings += 1
        return halvings
