"""Measures how many records one core reads, counts and exports, up to the acknowledgement of a Collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL

from benchmarks.readers.pinned_reader import Answer, Portions, Setting, read_on_one_core
from benchmarks.receivers.receivers import GRPC, HTTP, Receiver, span_receiver
from benchmarks.results.recorded import require_equal
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread

GOAL_RECORDS: Final = 50_000
GOAL_SPANS: Final = 10_000
"""Minimum spans per second and core."""

METRICS_ONLY: Final = "metrics only"
EXPORTED: Final = "metrics, and spans over OTLP/gRPC"
OVER_HTTP: Final = "metrics, and spans over OTLP/HTTP"
BY_SDK: Final = "the same over gRPC, encoded by the SDK"

NOTE: Final = (
    "The whole reader, stall watch included, in a process that is bound to one core: processor time of all its "
    "threads, until the receiver has confirmed what was sent. One tape; every call becomes a span here, of which each "
    "has 21 attributes; in use a budget bounds that, by default to 1,000 a second and rank."
)

USUAL: Final = Portions(count=21, calls=2_000)
QUICK: Final = Portions(count=3, calls=200)


def measure(portions: Portions) -> Section:
    """Let readers with and without export read the same tape.

    Raises:
        RuntimeError: A span did not arrive.
    """
    with span_receiver() as receiver:
        answer = read_on_one_core(_settings(receiver), portions)
        require_equal((answer.spans, 0), (receiver.received(), answer.dropped), "spans have arrived and been dropped")
        return _section(answer, receiver, portions)


def _settings(receiver: Receiver) -> dict[str, Setting]:
    settings = {METRICS_ONLY: Setting({OTEL_TRACES_EXPORTER: "none"})}
    over = {
        protocol: {OTEL_EXPORTER_OTLP_ENDPOINT: endpoint, OTEL_EXPORTER_OTLP_PROTOCOL: protocol}
        for protocol, endpoint in receiver.endpoints.items()
    }
    settings[EXPORTED] = Setting(over[GRPC])
    settings[BY_SDK] = Setting(over[GRPC], is_encoded_by_sdk=True)
    if HTTP in over:
        settings[OVER_HTTP] = Setting(over[HTTP])
    return settings


def _section(answer: Answer, receiver: Receiver, portions: Portions) -> Section:
    spreads = {name: Spread.of(microseconds) for name, microseconds in answer.microseconds.items()}
    return Section(
        key="exporting",
        title="Reading a tape and exporting, on one core",
        columns=["", "µs per record", "records per second"],
        rows=[[name, str(spread), f"{1e6 / spread.median:,.0f}"] for name, spread in spreads.items()],
        notes=[NOTE, receiver.note],
        goals=[_goal(METRICS_ONLY, spreads, GOAL_RECORDS), _goal(EXPORTED, spreads, GOAL_SPANS)],
        data={
            "unit": "µs per record",
            **asdict(portions),
            "receiver": receiver.name,
            "spans_received": answer.spans,
            "readers": _data(answer.microseconds, spreads),
        },
    )


def _goal(name: str, spreads: Mapping[str, Spread], per_second: int) -> Goal:
    return Goal(f"{name}, a record ({per_second:,} a second)", spreads[name].median, 1e6 / per_second, "µs")


def _data(rounds: Mapping[str, Sequence[float]], spreads: Mapping[str, Spread]) -> dict[str, Any]:
    return {name: {"rounds": rounds[name], **asdict(spread)} for name, spread in spreads.items()}
