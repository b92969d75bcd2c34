"""Where the demo exports to, given its options and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.cli.demo.job import set_outputs
from otel_torchdist.cli.demo.options import DemoOptions, Fault, Protocol

FILE = "OTEL_PYTHON_TORCHDIST_OTLP_FILE"
TRACES = "OTEL_TRACES_EXPORTER"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
OWN_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


def options(endpoint: str | None = None, protocol: Protocol | None = None) -> DemoOptions:
    """Options of the demo."""
    return DemoOptions(4, 240, 0, Fault.LATE, 5.0, 20.0, Path("spans.jsonl"), endpoint, protocol, plain=False)


@pytest.mark.parametrize(
    ("wanted", "before", "after"),
    [
        (options(), {}, {TRACES: "none"}),
        (options(), {ENDPOINT: "http://a:4317"}, {ENDPOINT: "http://a:4317"}),
        (options(), {OWN_ENDPOINT: "http://a:4317"}, {OWN_ENDPOINT: "http://a:4317"}),
        (options(), {TRACES: "console"}, {TRACES: "console"}),
        (options("http://b:4317"), {}, {TRACES: "otlp", ENDPOINT: "http://b:4317"}),
        (options("http://b:4317"), {OWN_ENDPOINT: "http://a"}, {TRACES: "otlp", ENDPOINT: "http://b:4317"}),
        (options("b:4318"), {}, {TRACES: "otlp", ENDPOINT: "b:4318", PROTOCOL: "http/protobuf"}),
        (options("http://b:1", Protocol.HTTP), {}, {TRACES: "otlp", ENDPOINT: "http://b:1", PROTOCOL: "http/protobuf"}),
        (options("http://b:4318", Protocol.GRPC), {}, {TRACES: "otlp", ENDPOINT: "http://b:4318", PROTOCOL: "grpc"}),
        (options("http://b:x"), {}, {TRACES: "otlp", ENDPOINT: "http://b:x"}),
    ],
)
def test_endpoint(wanted: DemoOptions, before: dict[str, str], after: dict[str, str]) -> None:
    """The command line takes precedence over the environment; with neither, only the file is written."""
    environ = dict(before)
    set_outputs(environ, wanted)
    others = after.get(TRACES, "otlp").replace("none", "")
    expected = {**after, TRACES: f"{others},torchdist_otlp_json".removeprefix(","), FILE: str(wanted.output.resolve())}
    assert environ == expected
