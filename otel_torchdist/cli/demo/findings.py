"""What the demo is judged by: whether the right verdict was given, and in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from otel_torchdist import semconv
from otel_torchdist.cli.alarm import alarm
from otel_torchdist.cli.demo.options import VERDICT_WITHIN_S, DemoOptions
from otel_torchdist.cli.demo.view import View
from otel_torchdist.stall.attributes import resolution
from otel_torchdist.stall.events import Event, IncidentResolved, Occasion, VerdictGiven
from otel_torchdist.stall.verdict import Verdict


@dataclass(slots=True)
class Findings:
    """What was found, told as it comes.

    Attributes:
        options: What the demo was asked for.
        view: Where it is told.
        scrape: Gives the lines of `/metrics` that a stall of an operation changes.
        verdict: On the stall that is on; None while there is none.
        said: The verdict that was given last, on whatever stall; None before the first.
        named: The last verdict that is the expected one; on a busy machine a rank may be late at the start too.
        named_after_s: Seconds from the first wait to that verdict, when it was given first.
        trace_id: Trace of that stall's incident.
        is_over: Whether the job was told to end: that its ranks die then is no finding.
        metrics: What `/metrics` said of it while it was on; empty when it was over too soon.
    """

    options: DemoOptions
    view: View
    scrape: Callable[[str], list[str]]
    verdict: Verdict | None = None
    said: Verdict | None = None
    named: Verdict | None = None
    named_after_s: float | None = None
    trace_id: int = 0
    is_over: bool = False
    metrics: list[str] = field(default_factory=list[str])

    @property
    def is_in_time(self) -> bool:
        """Whether the expected verdict was given soon enough."""
        return self.named_after_s is not None and self.named_after_s <= self.options.threshold_s + VERDICT_WITHIN_S

    def take(self, events: Iterable[Event]) -> None:
        """Tell what one turn of the reader has found."""
        for event in events:
            if isinstance(event, VerdictGiven) and not self.is_over:
                self._take_verdict(event)
            elif isinstance(event, IncidentResolved) and self.verdict is not None:
                self.verdict = None
                self.view.say(f"stall over: {resolution(event.verdict, event.outcome, event.length_ns)}")
        if self.verdict is not None and self.trace_id and not self.metrics:
            sample = self.scrape(self.verdict.operation)
            # The agent looks for itself, and may not have seen the stall yet.
            self.metrics = sample if any(line.startswith(semconv.STALL_INFO) for line in sample) else []

    def _take_verdict(self, event: VerdictGiven) -> None:
        self.verdict = self.said = event.verdict
        # Ranks that end while they wait may be a second occasion to say the same.
        is_known = self.named is not None and event.verdict.says_the_same_as(self.named)
        if event.occasion is Occasion.GROWN or is_known:
            self.view.say(f"still: {alarm(event).text}")
            return
        self.view.sound(alarm(event))
        if self._is_expected(event.verdict):
            self.named = event.verdict
            self.named_after_s = (time.monotonic_ns() - event.verdict.since_ns) / 1e9
            self.trace_id = event.incident.trace_id

    def _is_expected(self, verdict: Verdict) -> bool:
        return (verdict.kind, verdict.ranks) == (self.options.expected.verdict, self.options.expected.ranks)
