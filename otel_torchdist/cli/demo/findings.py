"""What the demo is judged by: whether the stall was named, by whom, and in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from otel_torchdist import semconv
from otel_torchdist.cli.alarm import alarm
from otel_torchdist.cli.demo.options import VERDICT_WITHIN_S, DemoOptions
from otel_torchdist.cli.demo.view import View
from otel_torchdist.stall.events import Event, IncidentResolved, Occasion, VerdictGiven
from otel_torchdist.stall.sentence import resolution
from otel_torchdist.stall.verdict import Verdict, VerdictKind


@dataclass(slots=True)
class Findings:
    """What was found, told as it comes.

    Attributes:
        options: What the demo was asked for.
        view: Where it is told.
        scrape: Gives the lines of `/metrics` that a stall of an operation changes.
        verdict: On the stall that is on; None while there is none.
        named_after_s: Seconds from the first wait to the verdict that names the rank whose storage blocks; the last
            such verdict, for on a busy machine it may be late at the start too.
        trace_id: Trace of that stall's incident.
        metrics: What `/metrics` said then.
    """

    options: DemoOptions
    view: View
    scrape: Callable[[str], list[str]]
    verdict: Verdict | None = None
    named_after_s: float | None = None
    trace_id: int = 0
    metrics: list[str] = field(default_factory=list[str])

    @property
    def is_in_time(self) -> bool:
        """Whether the rank was named soon enough."""
        return self.named_after_s is not None and self.named_after_s <= self.options.threshold_s + VERDICT_WITHIN_S

    def take(self, events: Iterable[Event]) -> None:
        """Tell what one turn of the reader has found."""
        for event in events:
            if isinstance(event, VerdictGiven):
                self._take_verdict(event)
            elif isinstance(event, IncidentResolved):
                self.verdict = None
                self.view.say(f"stall over: {resolution(event.verdict, event.outcome, event.length_ns)}")
        if self.verdict is not None and self.trace_id and not self._metrics_show_it():
            self.metrics = self.scrape(self.verdict.operation)

    def _metrics_show_it(self) -> bool:
        """Whether the agent, which looks for itself, has given its verdict too when `/metrics` was scraped."""
        return any(line.startswith(semconv.STALL_INFO) for line in self.metrics)

    def _take_verdict(self, event: VerdictGiven) -> None:
        self.verdict = event.verdict
        if event.occasion is Occasion.GROWN:
            self.view.say(f"still: {alarm(event).text}")
            return
        self.view.sound(alarm(event))
        if self._names_the_slow_rank(event.verdict):
            self.named_after_s = (time.monotonic_ns() - event.verdict.since_ns) / 1e9
            self.trace_id = event.incident.trace_id

    def _names_the_slow_rank(self, verdict: Verdict) -> bool:
        return verdict.kind is VerdictKind.ABSENT and self.options.slow_rank in verdict.ranks
