"""The demo's last words: what was found, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from otel_torchdist import semconv
from otel_torchdist.cli.demo.faults import passes, story
from otel_torchdist.cli.demo.findings import Findings
from otel_torchdist.cli.paths import shown
from otel_torchdist.stall.verdict import VerdictKind
from otel_torchdist.telemetry.rank_ranges import name_ranks

_UI_PORT: Final = 16686
"""Of Jaeger, unless it was set up otherwise."""


def closing_words(findings: Findings, accuracy: str, endpoint: str, dropped: int) -> Iterator[str]:
    """Lines to print when the training is over.

    Args:
        findings: What was found.
        accuracy: The last line of the training script, where it came to its end.
        endpoint: Where spans went beside the file; '' for nowhere.
        dropped: Spans that could not be exported.
    """
    options = findings.options
    yield f"Training has finished: {accuracy}" if passes(options.fault) else "Training is over, and has not finished."
    yield from _verdict(findings)
    trace = f"{findings.trace_id:032x}"
    yield ""
    yield f"Spans, as OTLP JSON lines: {shown(options.output)}"
    if findings.trace_id:
        yield f"  those of the stall: grep {trace} {shown(options.output)}"
    if endpoint and dropped:
        yield f"{dropped} spans did not get to {endpoint}: see the warning above."
    elif endpoint:
        yield f"They were sent to {endpoint} too. If it is a Jaeger, search for {semconv.STALLED}=true, or open"
        yield f"  http://{_host(endpoint)}:{_UI_PORT}/trace/{trace}"
    if findings.metrics:
        yield "/metrics, as scraped during the stall:"
        for line in findings.metrics:
            yield f"  {line}"


def _verdict(findings: Findings) -> Iterator[str]:
    """What was expected, and what was said."""
    options = findings.options
    expected, said, after_s = options.expected, findings.said, findings.named_after_s
    yield f"Staged: {story(options.fault, f'rank {options.faulty_rank}', f'{options.block_s:g} s')}."
    yield f"Expected: {_named(expected.verdict, expected.ranks)}."
    if after_s is not None:
        limit = f"threshold {options.threshold_s:g} s"
        yield f"Said: the same, {after_s:.1f} s after the first rank began to wait ({limit})."
    else:
        yield f"Said: {_named(said.kind, said.ranks) if said is not None else 'nothing'}."


def _named(kind: VerdictKind, ranks: Sequence[int]) -> str:
    return f"{kind.value}, {name_ranks(ranks)}" if ranks else kind.value


def _host(endpoint: str) -> str:
    return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname or "localhost"
