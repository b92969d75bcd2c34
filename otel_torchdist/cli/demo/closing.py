"""The demo's last words: what was found, and where to look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from otel_torchdist import semconv
from otel_torchdist.cli.demo.findings import Findings
from otel_torchdist.cli.paths import shown

_UI_PORT: Final = 16686
"""Of Jaeger, unless it was set up otherwise."""


def closing_words(findings: Findings, accuracy: str, endpoint: str, dropped: int) -> Iterator[str]:
    """Lines to print when the training has finished.

    Args:
        findings: What was found.
        accuracy: The last line of the training script.
        endpoint: Where spans went beside the file; '' for nowhere.
        dropped: Spans that could not be exported.
    """
    options = findings.options
    yield f"Training has finished: {accuracy}"
    rank, after_s = options.slow_rank, findings.named_after_s
    if after_s is None:
        yield f"No verdict has named rank {rank}, which was held up for {options.block_s:g} s."
    else:
        limit = f"threshold {options.threshold_s:g} s"
        yield f"Rank {rank} was named {after_s:.1f} s after the others began to wait ({limit})."
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


def _host(endpoint: str) -> str:
    return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname or "localhost"
