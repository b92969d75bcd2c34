"""OpenTelemetry's limits for spans apply to ours too, whichever exporter takes them."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink
from otel_torchdist.telemetry.export.exporters import readable_span
from otel_torchdist.telemetry.export.otlp import OtlpEncoder
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, environment_limits, limiter

SPAN = FinishedSpan(
    "stall: all_reduce (absent)",
    1,
    2,
    None,
    100,
    200,
    {
        "torchdist.stack": "a" * 50,
        "torchdist.shapes": ["64x128x256", "1"],
        "torchdist.rank": 1234567,
        "torchdist.async": True,
    },
    links=(LinkTarget(3, 4), LinkTarget(5, 6), LinkTarget(7, 8)),
)


def exported() -> tuple[dict[str, object], int, int]:
    """Attributes, how many were dropped, and links of the span as an exporter gets it."""
    exporter = InMemorySpanExporter()
    sink = ExporterSink(exporter, Resource({}), "memory")
    sink.emit([SPAN])
    assert sink.flush(10.0)
    sink.shutdown(1.0)
    [span] = exporter.get_finished_spans()
    return dict(span.attributes or {}), span.dropped_attributes, len(span.links)


def test_without_limits() -> None:
    """Unset, spans are not touched, at no cost."""
    assert limiter(environment_limits()) is None
    attributes, dropped, links = exported()
    assert attributes == SPAN.attributes
    assert (dropped, links) == (0, 3)


@pytest.mark.parametrize("variable", ["OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT"])
def test_length_of_texts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are cut, in lists too; numbers are unchanged."""
    monkeypatch.setenv(variable, "4")
    attributes, dropped, _ = exported()
    assert list(attributes.values()) == ["aaaa", ["64x1", "1"], 1234567, True]
    assert dropped == 0


@pytest.mark.parametrize("variable", ["OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"])
def test_number_of_attributes(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attributes are kept, and the rest is counted in OTLP's field for it."""
    monkeypatch.setenv(variable, "2")
    attributes, dropped, _ = exported()
    assert (list(attributes), dropped) == (["torchdist.stack", "torchdist.shapes"], 2)


def test_number_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root has only as many links as are allowed."""
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "1")
    assert exported()[2] == 1


def test_our_encoder_counts_what_is_left_out() -> None:
    """Our own encoder gives the same as the SDK's."""
    limit = limiter(SpanLimits(max_span_attributes=1))
    assert limit is not None
    [span] = limit([SPAN])
    request = OtlpEncoder(Resource({})).encode([span])
    assert request.resource_spans[0].scope_spans[0].spans[0].dropped_attributes_count == 3
    assert readable_span(span, Resource({})).dropped_attributes == 3


def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A value that cannot be used is one warning with its name; spans are exported whole."""
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "few")
    assert len(exported()[0]) == 4
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == (
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a non-negative integer but got few: "
        "the limits for spans are not applied"
    )
