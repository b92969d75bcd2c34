"""Checks that the demo's expected verdict came in time, and writes the closing lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from otel_torchdist.cli.demo.options import VERDICT_WITHIN_S, DemoOptions, corrupts_values, story, training_continues
from otel_torchdist.cli.output.terminal import Alarm, alarm
from otel_torchdist.cli.output.text import shown
from otel_torchdist.cli.watch.views import View
from otel_torchdist.judge.stall.events import IncidentResolved, Occasion, VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import resolution
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.reports.finding import Finding
from otel_torchdist.model.text import name_ranks
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions.stalls import STALL_INFO


@dataclass(slots=True)
class DemoFindings:
    """Collects verdicts and findings of the demo, and shows them as they come.

    Attributes:
        options: The options of the demo.
        view: Shows reports.
        scrape: Returns the lines of `/metrics` that a stall of an operation changes.
        verdict: Verdict on the ongoing stall; None if there is none.
        alarm: `verdict` for people to read.
        latest: The last verdict on any stall; None before the first.
        expected_verdict: The last verdict equal to the expected one; None before it is given. On a busy machine,
            another rank may be late at the start and cause an earlier, different verdict.
        expected_after_s: Seconds from the first wait of a rank until `expected_verdict` was given.
        finding: The expected finding, for a fault that causes no stall; None until it is reported.
        trace_id: Trace of the incident with the expected verdict; 0 before it is given.
        is_ending: Whether the demo has asked the job to end. Verdicts on the death of its ranks are then not shown.
        metrics: The lines of `/metrics` that show the stall, scraped during it; empty if it was over too soon.
        shown_sentences: Sentences of the findings that have been shown.
    """

    options: DemoOptions
    view: View
    scrape: Callable[[str], list[str]]
    verdict: Verdict | None = None
    alarm: Alarm | None = None
    latest: Verdict | None = None
    expected_verdict: Verdict | None = None
    expected_after_s: float | None = None
    finding: Finding | None = None
    trace_id: int = 0
    is_ending: bool = False
    metrics: list[str] = field(default_factory=list[str])
    shown_sentences: set[str] = field(default_factory=set[str])

    @property
    def is_in_time(self) -> bool:
        """Whether the expected verdict was given soon enough."""
        return self.finding is not None or self._is_verdict_in_time

    @property
    def _is_verdict_in_time(self) -> bool:
        return (
            self.expected_after_s is not None and self.expected_after_s <= self.options.threshold_s + VERDICT_WITHIN_S
        )

    def process(self, events: Iterable[VerdictGiven | IncidentResolved | Finding]) -> None:
        """Show the events of one poll."""
        for event in events:
            match event:
                case VerdictGiven():
                    self._show_verdict(event)
                case Finding():
                    self._show_finding(event)
                case IncidentResolved():
                    self._show_end_of_stall(event)
        if self.verdict is not None and self.trace_id and not self.metrics:
            sample = self.scrape(self.verdict.operation)
            # The agent polls by itself, and may not have seen the stall yet.
            self.metrics = sample if any(line.startswith(STALL_INFO.name) for line in sample) else []

    def _show_end_of_stall(self, event: IncidentResolved) -> None:
        if self.verdict is not None:
            self.verdict = self.alarm = None
            self.view.report(f"stall over: {resolution(event.verdict, event.outcome, event.length_ns)}")

    def _show_verdict(self, event: VerdictGiven) -> None:
        if self.is_ending:
            return
        self.verdict = self.latest = event.verdict
        self.alarm = alarm(event)
        # Ranks that end while they wait may cause the same verdict to be given again.
        is_repeated = self.expected_verdict is not None and event.verdict.agrees_with(self.expected_verdict)
        if event.occasion is Occasion.GROWN or is_repeated:
            self.view.report_stall(self.alarm, is_new=False)
            return
        self.view.report_stall(self.alarm, is_new=True)
        if self._is_expected(event.verdict):
            self.expected_verdict = event.verdict
            self.expected_after_s = (time.monotonic_ns() - event.verdict.since_ns) / 1e9
            self.trace_id = event.incident.trace_id

    def report_finding(self, sentence: str, origin: str = "") -> None:
        """Show a finding other than a stall, once. Both this process and the agent detect it, and either may miss it.

        Args:
            sentence: The finding.
            origin: Run and trace, as in the agent's log; '' if detected in this process.
        """
        if sentence not in self.shown_sentences:
            self.shown_sentences.add(sentence)
            self.view.report(f"finding: {sentence} {origin}".rstrip())

    def _show_finding(self, finding: Finding) -> None:
        """Show the expected finding. All other findings are shown from the agent's log, see `FollowedAgent`."""
        expected = self.options.expected
        is_expected = (finding.kind.value, finding.ranks) == (expected.verdict, expected.ranks)
        if corrupts_values(self.options.fault) and is_expected:
            self.report_finding(finding.sentence)
            self.finding = finding  # the agent detects the finding independently, and reports it in another trace

    def _is_expected(self, verdict: Verdict) -> bool:
        return (verdict.kind.value, verdict.ranks) == (self.options.expected.verdict, self.options.expected.ranks)


_UI_PORT: Final = 16686
"""Default port of Jaeger's UI."""


def closing_lines(findings: DemoFindings, accuracy: str, endpoint: str, dropped: int) -> Iterator[str]:
    """Yield the lines to print after the training.

    Args:
        findings: The demo's findings.
        accuracy: Last line of the training script.
        endpoint: Receiver of spans in addition to the file; '' for none.
        dropped: Number of spans that could not be exported.
    """
    options = findings.options
    yield (
        f"Training has finished: {accuracy}"
        if training_continues(options.fault)
        else "Training has ended without finishing."
    )
    yield from _comparison(findings)
    trace = f"{findings.trace_id:032x}"
    yield ""
    yield f"Spans, as OTLP JSON lines: {shown(options.output)}"
    if findings.finding is not None:
        yield f"  trace of the finding: grep '({options.expected.verdict})' {shown(options.output)}"
    elif findings.trace_id:
        yield f"  trace of the stall: grep {trace} {shown(options.output)}"
    if endpoint and dropped:
        yield f"{dropped} spans did not reach {endpoint}: see the warning above."
    elif endpoint:
        yield from _in_jaeger(findings, endpoint, trace)
    if findings.metrics:
        yield "/metrics, as scraped during the stall:"
        for line in findings.metrics:
            yield f"  {line}"


def _in_jaeger(findings: DemoFindings, endpoint: str, trace: str) -> Iterator[str]:
    search = f"They were sent to {endpoint} too. If it is a Jaeger, search for "
    if findings.finding is not None:
        yield f"{search}{semconv.VERDICT}={findings.options.expected.verdict}"
        return
    yield f"{search}{semconv.STALLED}=true, or open"
    yield f"  http://{_host(endpoint)}:{_UI_PORT}/trace/{trace}"


def _comparison(findings: DemoFindings) -> Iterator[str]:
    """Yield the expected and the reported verdict."""
    options = findings.options
    expected, latest, after_s = options.expected, findings.latest, findings.expected_after_s
    yield f"Staged: {story(options.fault, f'rank {options.faulty_rank}', f'{options.block_s:g} s')}."
    yield f"Expected: {_verdict_text(expected.verdict, expected.ranks)}."
    if after_s is not None:
        limit = f"threshold {options.threshold_s:g} s"
        yield f"Reported: the same, {after_s:.1f} s after the first rank began to wait ({limit})."
    elif findings.finding is not None:
        yield "Reported: the same."
    else:
        yield f"Reported: {_verdict_text(latest.kind.value, latest.ranks) if latest is not None else 'nothing'}."


def _verdict_text(verdict: str, ranks: Sequence[int]) -> str:
    return f"{verdict}, {name_ranks(ranks)}" if ranks else verdict


def _host(endpoint: str) -> str:
    return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname or "localhost"
