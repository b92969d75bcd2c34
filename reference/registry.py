"""Generates the registry of our names in the format of OpenTelemetry's Weaver, and their schema file.

`weaver registry check -r docs/semconv/registry` validates it; `weaver registry live-check` compares what a program
exports. See https://github.com/open-telemetry/weaver/blob/main/schemas/semconv-syntax.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from opentelemetry.semconv.schemas import Schemas

from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.metrics.metric import HistogramMetric, MetricKind, NumberMetric, Unit
from otel_torchdist.telemetry.semconv import attributes, names
from reference.constants import Constant, constants
from reference.pages import EVENTS, on_a_line
from reference.signals import (
    BOOLEANS,
    DOUBLES,
    EVENT_ATTRIBUTES,
    EXAMPLES,
    INTEGERS,
    LISTS,
    SPAN_KINDS,
    VALUES,
    SpanKindRow,
)

PREFIX: Final = "torchdist."
STABILITY: Final = "development"
NOTE: Final = "# Made from otel_torchdist/telemetry by `make docs`: change it there.\n"
SCHEMA_FORMAT: Final = "1.1.0"
_CONVENTIONS: Final = Schemas.V1_44_0.value.rpartition("/")[2]
"""Version of OpenTelemetry's conventions that define the names we take from them."""
_INSTRUMENTS: Final = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.UP_DOWN: "updowncounter",
    MetricKind.INFO: "gauge",
}

Group = dict[str, Any]


def registry_files(docs: Path) -> dict[Path, str]:
    """Return the text of each file of the registry, and of the schema file, by path below the folder of pages."""
    registry = docs / "semconv" / "registry"
    schema = {
        "file_format": SCHEMA_FORMAT,
        "schema_url": semconv.SCHEMA_URL,
        "versions": {semconv.SCHEMA_VERSION: None},
    }
    return {
        registry / "registry_manifest.yaml": _document(_manifest()),
        registry / "attributes.yaml": _document({"groups": list(_attribute_groups())}),
        registry / "spans.yaml": _document({"groups": [_span(kind) for kind in SPAN_KINDS]}),
        registry / "metrics.yaml": _document({"groups": list(_metrics())}),
        registry / "events.yaml": _document({"groups": list(_events())}),
        docs / "semconv" / "schemas" / semconv.SCHEMA_VERSION: _document(schema),
    }


def _manifest() -> Group:
    return {
        "name": semconv.SCOPE_NAME,
        "description": "Names of spans, metrics, events and attributes of otel_torchdist.",
        "semconv_version": semconv.SCHEMA_VERSION,
        "schema_base_url": semconv.SCHEMA_URL.removesuffix(f"/{semconv.SCHEMA_VERSION}"),
        "dependencies": [
            {
                "name": "otel",
                "registry_path": f"https://github.com/open-telemetry/semantic-conventions@v{_CONVENTIONS}[model]",
            }
        ],
    }


def _attribute_groups() -> Iterable[Group]:
    """Yield a group for each section of `semconv.attributes`. Names that OpenTelemetry defines are not repeated."""
    ours = [constant for constant in constants(attributes) if str(constant.value).startswith(PREFIX)]
    sections = dict.fromkeys(constant.section for constant in ours if constant.section != EVENTS)
    for section in sections:
        yield {
            "id": f"registry.torchdist.{section.removeprefix('attributes of ').replace(' ', '_')}",
            "type": "attribute_group",
            "display_name": f"{section[0].upper()}{section[1:]}",
            "brief": f"{section[0].upper()}{section[1:]}.",
            "attributes": [_attribute(constant) for constant in ours if constant.section == section],
        }


def _attribute(constant: Constant) -> Group:
    name = str(constant.value)
    attribute: Group = {
        "id": name,
        "type": _type(name),
        "stability": STABILITY,
        "brief": on_a_line(constant.doc),
    }
    if attribute["type"] in ("string", "string[]"):
        example = EXAMPLES.get(name) or next(iter(re.findall(r"`([^`]+)`", constant.doc)), "")
        attribute["examples"] = [[example]] if name in LISTS else [example]
    return attribute


def _type(name: str) -> object:
    if name in VALUES:
        return {"members": [{"id": value, "value": value, "stability": STABILITY} for value in VALUES[name]]}
    for names_of_type, type_name in (
        (INTEGERS, "int"),
        (DOUBLES, "double"),
        (BOOLEANS, "boolean"),
        (LISTS, "string[]"),
    ):
        if name in names_of_type:
            return type_name
    return "string"


def _span(kind: SpanKindRow) -> Group:
    described = [constant.doc for constant in constants(names) if constant.value == kind.name]
    return {
        "id": f"span.torchdist.{kind.id}",
        "type": "span",
        "span_kind": kind.kind,
        "stability": STABILITY,
        "brief": kind.brief or on_a_line(described[0]),
        "note": f"The name of the span is `{kind.name}`.",
        "attributes": [*_refs(kind.required, "required"), *_refs(kind.others, "recommended")],
    }


def _metrics() -> Iterable[Group]:
    """Yield a group for each metric. OpenTelemetry defines the durations of remote calls."""
    for row in (*NUMBER_METRICS, *HISTOGRAM_METRICS):
        if row.otel_name.startswith(PREFIX):
            yield _metric(row)


def _metric(row: NumberMetric | HistogramMetric) -> Group:
    is_histogram = isinstance(row, HistogramMetric)
    unit = Unit.SECONDS if is_histogram else row.unit
    dimensions = [semconv.OTEL_METRIC_ATTRIBUTES[label] for label in row.labels]
    optional = [name for name in dimensions if name == semconv.ERROR_TYPE]
    return {
        "id": f"metric.{row.otel_name}",
        "type": "metric",
        "metric_name": row.otel_name,
        "instrument": "histogram" if is_histogram else _INSTRUMENTS[row.kind],
        "unit": unit.value or "1",
        "stability": STABILITY,
        "brief": on_a_line(row.help),
        "attributes": [
            *_refs([name for name in dimensions if name not in optional], "required"),
            *_refs(optional, {"conditionally_required": "If the call failed."}),
        ],
    }


def _events() -> Iterable[Group]:
    for constant in constants(attributes):
        if constant.section == EVENTS:
            required, others = EVENT_ATTRIBUTES[str(constant.value)]
            yield {
                "id": f"event.{constant.value}",
                "type": "event",
                "name": constant.value,
                "stability": STABILITY,
                "brief": on_a_line(constant.doc),
                "note": "The body is the sentence that the log shows.",
                "attributes": [*_refs(required, "required"), *_refs(others, "recommended")],
            }


def _refs(names: Sequence[str], level: object) -> list[Group]:
    return [{"ref": name, "requirement_level": level} for name in dict.fromkeys(names)]


def _document(content: object) -> str:
    return NOTE + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
