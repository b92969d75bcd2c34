"""Spans that a command sends: all arrive, and what has become of them is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource

from otel_torchdist.telemetry.export.environment import imported_resource
from otel_torchdist.telemetry.export.exporter_sink import PORTION
from otel_torchdist.telemetry.export.outputs import file_delivery, otlp_delivery
from otel_torchdist.telemetry.export.queued_sink import ExportError
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.receivers.otlp_receiver import GRPC, HTTP, OtlpReceiver
from tests.support.receivers.refusing import refusing_port

SPANS = [FinishedSpan("call", 1, number, None, 1, 2, {}) for number in range(1, PORTION + 101)]
RESOURCE = Resource({"service.name": "test"})


@pytest.fixture(params=[GRPC, HTTP])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A receiver; the environment has its protocol."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
    with OtlpReceiver(request.param) as running:
        yield running


def test_every_span_arrives_once(receiver: OtlpReceiver) -> None:
    """In portions, in order, and counted; over HTTP the path is appended to the endpoint."""
    delivery = otlp_delivery(RESOURCE, receiver.endpoint, "--to")
    delivery.send(SPANS)
    assert [span.span_id for span in receiver.spans()] == [span.span_id for span in SPANS]
    assert (receiver.requests, delivery.accepted, delivery.rejected) == (2, len(SPANS), 0)
    assert delivery.name == f"--to {receiver.endpoint}"


def test_the_environment_names_the_receiver(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint of its own, the usual variables apply; one that is given is stronger than both of them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    delivery = otlp_delivery(RESOURCE)
    delivery.send(SPANS[:1])
    assert delivery.name == f"OTEL_EXPORTER_OTLP_ENDPOINT={receiver.endpoint}"
    with refusing_port() as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{port}")
        otlp_delivery(RESOURCE, receiver.endpoint).send(SPANS[1:2])
    assert len(receiver.spans()) == 2


def test_rejected_spans_are_counted(receiver: OtlpReceiver) -> None:
    """A receiver may accept a request and discard some of its spans."""
    receiver.refused, receiver.message = 3, "quota"
    delivery = otlp_delivery(RESOURCE, receiver.endpoint)
    delivery.send(SPANS)
    assert (delivery.accepted, delivery.rejected) == (len(SPANS) - 6, 6)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the reason instead of retrying for long, and nothing counts as accepted."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    with refusing_port() as port:
        delivery = otlp_delivery(RESOURCE, f"http://127.0.0.1:{port}")
        with pytest.raises(ExportError, match="no process listens there"):
            delivery.send(SPANS)
    assert delivery.accepted == 0


def test_an_endpoint_that_no_exporter_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the exporter's own code refuses is an error of the same kind."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(ExportError, match="the exporter cannot be created"):
        otlp_delivery(RESOURCE, "http://127.0.0.1:4317")


def test_a_password_is_not_shown() -> None:
    """The name of a destination appears in messages."""
    delivery = otlp_delivery(RESOURCE, "http://user:secret@127.0.0.1:4317", "--to")
    assert delivery.name == "--to http://127.0.0.1:4317"
    delivery.send([])


def test_a_file(tmp_path: Path) -> None:
    """One OTLP request on each line."""
    path = tmp_path / "spans.jsonl"
    delivery = file_delivery(RESOURCE, path)
    delivery.send(SPANS)
    requests = [json.loads(line) for line in path.read_text().splitlines()]
    sent = [span for request in requests for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert [int(span["spanId"], 16) for span in sent] == [span.span_id for span in SPANS]


def test_the_resource_does_not_say_where_it_was_sent_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a second import would send other spans with the same ids; what the user sets is kept."""
    attributes = imported_resource().attributes
    assert attributes["service.name"] == "torch.distributed"
    assert {"host.name", "service.instance.id", "process.pid", "ip"}.isdisjoint(attributes)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine,host.name=box")
    attributes = imported_resource().attributes
    assert (attributes["service.instance.id"], attributes["host.name"]) == ("mine", "box")
