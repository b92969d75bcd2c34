"""A metric: its name, its meaning, and the source of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from otel_torchdist.telemetry.metrics.durations import DurationHistogram
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot, OperationSnapshot, RankSnapshot

Labels: TypeAlias = tuple[str, ...]
Numbers: TypeAlias = Iterable[tuple[Labels, float]]
Histograms: TypeAlias = Iterable[tuple[Labels, DurationHistogram]]
Reader: TypeAlias = Callable[[NodeSnapshot], Numbers]


class MetricKind(Enum):
    """The behavior of a number over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    UP_DOWN = "up_down"
    """A gauge that may be summed over ranks."""
    INFO = "info"
    """Always 1. The labels carry the information."""


class Unit(Enum):
    """Units, in OpenTelemetry's notation."""

    NONE = ""
    SECONDS = "s"
    BYTES = "By"
    OPERATIONS = "{operation}"
    STEPS = "{step}"
    GROUPS = "{group}"
    RECORDS = "{record}"
    NAMES = "{name}"
    SPANS = "{span}"
    CHECKSUMS = "{checksum}"
    CHECKPOINTS = "{checkpoint}"
    FILES = "{file}"
    BATCHES = "{batch}"
    SAMPLES = "{sample}"
    TOKENS = "{token}"
    FLOPS = "{flop}"


@dataclass(frozen=True, slots=True)
class NumberMetric:
    """A metric with one number per series.

    Attributes:
        otel_name: Name in OpenTelemetry.
        help: One sentence for users.
        labels: Names of its labels.
        read: Returns its series, each with the values of `labels` and a number.
    """

    otel_name: str
    kind: MetricKind
    unit: Unit
    help: str
    labels: Labels
    read: Reader

    @property
    def name(self) -> str:
        """Name in Prometheus, by OpenTelemetry's rules: `torchdist_blocked_seconds_total`."""
        return _prometheus_name(self.otel_name, self.unit) + ("_total" if self.kind is MetricKind.COUNTER else "")


def counter(otel_name: str, unit: Unit, help: str, labels: Labels, read: Reader) -> NumberMetric:
    """Define a counter."""
    return NumberMetric(otel_name, MetricKind.COUNTER, unit, help, labels, read)


def gauge(otel_name: str, unit: Unit, help: str, labels: Labels, read: Reader) -> NumberMetric:
    """Define a gauge."""
    return NumberMetric(otel_name, MetricKind.GAUGE, unit, help, labels, read)


def info(otel_name: str, help: str, labels: Labels, read: Reader) -> NumberMetric:
    """Define a metric that is always 1 and carries information in its labels."""
    return NumberMetric(otel_name, MetricKind.INFO, Unit.NONE, help, labels, read)


@dataclass(frozen=True, slots=True)
class HistogramMetric:
    """A histogram of durations in seconds. The attributes are as in `NumberMetric`."""

    otel_name: str
    help: str
    labels: Labels
    read: Callable[[NodeSnapshot], Histograms]

    @property
    def name(self) -> str:
        """Name in Prometheus: `torchdist_step_duration_seconds`."""
        return _prometheus_name(self.otel_name, Unit.SECONDS)


_SUFFIXES: Final = {Unit.SECONDS: "_seconds", Unit.BYTES: "_bytes"}


def _prometheus_name(otel_name: str, unit: Unit) -> str:
    return otel_name.replace(".", "_") + _SUFFIXES.get(unit, "")


BY_RANK: Final = ("run", "rank")
BY_GROUP: Final = ("run", "rank", "group")
BY_OPERATION: Final = ("run", "rank", "group", "operation")


def of_rank(value: Callable[[RankSnapshot], float | None]) -> Reader:
    """Return a reader of one number per rank. Ranks with None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            number = value(rank)
            if number is not None:
                yield (rank.run, str(rank.rank)), number

    return read


def of_operation(value: Callable[[OperationSnapshot], float]) -> Reader:
    """Return a reader of one number per operation of each rank."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for operation in rank.operations:
                yield (rank.run, str(rank.rank), operation.group, operation.operation), value(operation)

    return read
