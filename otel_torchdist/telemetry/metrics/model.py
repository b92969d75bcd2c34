"""What a metric is: its name, its meaning, and where its values come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from otel_torchdist.telemetry.metrics.durations import DurationHistogram
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot

Labels: TypeAlias = tuple[str, ...]
Numbers: TypeAlias = Iterable[tuple[Labels, float]]
Histograms: TypeAlias = Iterable[tuple[Labels, DurationHistogram]]


class MetricKind(Enum):
    """How a number behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    UP_DOWN = "up_down"
    """A gauge that may be summed over ranks."""
    INFO = "info"
    """Always 1; the information is in its labels."""


class Unit(Enum):
    """Units as OpenTelemetry writes them."""

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
        name: Prometheus name.
        kind: How it behaves.
        unit: Its unit.
        help: One sentence for users.
        labels: Names of its labels.
        read: Reads its series, each the values of `labels` and a number.
    """

    name: str
    kind: MetricKind
    unit: Unit
    help: str
    labels: Labels
    read: Callable[[NodeSnapshot], Numbers]


@dataclass(frozen=True, slots=True)
class HistogramMetric:
    """A histogram of durations in seconds; attributes as in `NumberMetric`."""

    name: str
    help: str
    labels: Labels
    read: Callable[[NodeSnapshot], Histograms]
