"""The registry of names has Weaver's format, and what is exported has its names."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jsonschema
import pytest
import yaml
from opentelemetry.semconv.schemas import Schemas

from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.judge.stall.test_reporter import Reported
from tests.support.registry import REGISTRY, assert_belongs, assert_defined, definitions, groups, names_of_otel
from tests.support.worlds.fake_world import FakeWorld, group_of

STABILITY = {"enum": ["development", "alpha", "beta", "release_candidate", "stable"]}
TEXT = {"type": "string", "minLength": 1}
LEVEL = {
    "anyOf": [
        {"enum": ["required", "recommended", "opt_in"]},
        {
            "type": "object",
            "properties": {"conditionally_required": TEXT},
            "required": ["conditionally_required"],
            "additionalProperties": False,
        },
    ]
}
MEMBER = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"}, "value": TEXT, "stability": STABILITY},
    "required": ["id", "value", "stability"],
    "additionalProperties": False,
}
DEFINITION = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$"},
        "type": {
            "anyOf": [
                {"enum": ["string", "int", "double", "boolean", "string[]"]},
                {
                    "type": "object",
                    "properties": {"members": {"type": "array", "items": MEMBER, "minItems": 2}},
                    "required": ["members"],
                    "additionalProperties": False,
                },
            ]
        },
        "stability": STABILITY,
        "brief": TEXT,
        "examples": {"type": "array", "minItems": 1, "items": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}},
    },
    "required": ["id", "type", "stability", "brief"],
    "additionalProperties": False,
}
REFERENCE = {
    "type": "object",
    "properties": {"ref": TEXT, "requirement_level": LEVEL},
    "required": ["ref", "requirement_level"],
    "additionalProperties": False,
}


def kind_of_group(kind: str, item: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The schema of a group's kind, with the fields that Weaver requires of it and no others."""
    properties = {
        "id": {"type": "string", "pattern": r"^(registry|span|metric|event)\.[a-z0-9_.]+$"},
        "type": {"const": kind},
        "brief": TEXT,
        "attributes": {"type": "array", "items": item},
        **fields,
    }
    return {
        "type": "object",
        "properties": {**properties, "note": TEXT},
        "required": list(properties),
        "additionalProperties": False,
    }


KINDS = {
    "attribute_group": kind_of_group("attribute_group", DEFINITION, display_name=TEXT),
    "span": kind_of_group("span", REFERENCE, stability=STABILITY, span_kind={"enum": ["internal", "client", "server"]}),
    "metric": kind_of_group(
        "metric",
        REFERENCE,
        stability=STABILITY,
        metric_name=TEXT,
        unit=TEXT,
        instrument={"enum": ["counter", "gauge", "histogram", "updowncounter"]},
    ),
    "event": kind_of_group("event", REFERENCE, stability=STABILITY, name=TEXT),
}
MANIFEST = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "description": TEXT,
        "semconv_version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "schema_base_url": {"type": "string", "pattern": "^https://.*[^/]$"},
        "dependencies": {
            "type": "array",
            "maxItems": 1,
            "items": {
                "type": "object",
                "properties": {"name": TEXT, "registry_path": TEXT},
                "required": ["name", "registry_path"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "semconv_version", "schema_base_url"],
    "additionalProperties": False,
}


def test_groups_have_weavers_fields() -> None:
    """Each group has the fields that its kind requires, and none that Weaver does not know."""
    for group in groups():
        jsonschema.validate(group, KINDS[group["type"]])
    assert set(KINDS) == {group["type"] for group in groups()}


def test_manifest() -> None:
    """It gives the schema's URL in two parts, and depends on the conventions whose names we use."""
    manifest = yaml.safe_load((REGISTRY / "registry_manifest.yaml").read_text())
    jsonschema.validate(manifest, MANIFEST)
    assert f"{manifest['schema_base_url']}/{manifest['semconv_version']}" == semconv.SCHEMA_URL
    assert manifest["dependencies"][0]["registry_path"].endswith(f"@v{Schemas.V1_44_0.value.split('/')[-1]}[model]")
    schema = yaml.safe_load((REGISTRY.parent / "schemas" / semconv.SCHEMA_VERSION).read_text())
    assert schema == {
        "file_format": "1.1.0",
        "schema_url": semconv.SCHEMA_URL,
        "versions": {semconv.SCHEMA_VERSION: None},
    }


def test_names_are_unique_and_defined() -> None:
    """No id is given twice, each reference leads to an attribute of ours or of OpenTelemetry's, and none is unused."""
    ids = Counter(group["id"] for group in groups())
    ids.update(attribute["id"] for group in groups() for attribute in group["attributes"] if "id" in attribute)
    assert [name for name, count in ids.items() if count > 1] == []
    for group in groups():
        refs = Counter(attribute["ref"] for attribute in group["attributes"] if "ref" in attribute)
        assert [name for name, count in refs.items() if count > 1] == [], group["id"]
        assert refs.keys() <= definitions().keys() | names_of_otel(), group["id"]
    used = {attribute.get("ref") for group in groups() for attribute in group["attributes"]}
    assert definitions().keys() - used == set()


def test_strings_have_examples() -> None:
    """An example shows the form of a text, of the attribute's own type."""
    for name, definition in definitions().items():
        if definition["type"] in ("string", "string[]"):
            [example] = definition["examples"]
            assert isinstance(example, list) is (definition["type"] == "string[]"), name
        else:
            assert "examples" not in definition, name


def test_metrics_are_complete_and_have_no_unit_in_their_name() -> None:
    """Each metric of ours is listed, without a unit in its name, as OpenTelemetry's conventions demand."""
    listed = {group["metric_name"] for group in groups() if group["type"] == "metric"}
    ours = {row.otel_name for row in (*NUMBER_METRICS, *HISTOGRAM_METRICS) if row.otel_name.startswith("torchdist.")}
    assert listed == ours
    assert [name for name in listed if re.search(r"(seconds|bytes|_total)$", name)] == []


def stalled(size: int = 4) -> Reported:
    """A stall with one absent rank, up to its end."""
    world, group = FakeWorld(size), group_of(*range(size), description="default_pg")
    numbers = {rank.rank: rank.enter(group, 1.0) for rank in world.ranks[:-1]}
    reported = Reported(world)
    reported.until(20)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 20.5)
    number = world.ranks[-1].enter(group, 20.4)
    world.ranks[-1].end(number, 20.5)
    reported.until(40)
    return reported


@pytest.fixture(scope="module")
def reported() -> Reported:
    """A stall."""
    return stalled()


def kind_of(span: FinishedSpan) -> str:
    """The group of a stall's span."""
    if span.name.startswith("stall: "):
        return "span.torchdist.stall"
    return "span.torchdist.stall.rank" if span.name.startswith("rank ") else "span.torchdist.operation.in_progress"


def test_spans_of_a_stall(reported: Reported) -> None:
    """Root, bars and markers have exactly the attributes that the registry gives them."""
    spans = [span for span in reported.sink.spans if span.name != "step"]
    assert {kind_of(span) for span in spans} == {
        "span.torchdist.stall",
        "span.torchdist.stall.rank",
        "span.torchdist.operation.in_progress",
    }
    for span in spans:
        assert_defined(span.attributes)
        assert_belongs(kind_of(span), span.attributes)


def test_events_of_a_stall(reported: Reported) -> None:
    """The log events too."""
    records = [log.log_record for log in reported.logs.get_finished_logs()]
    assert {record.event_name for record in records} == {semconv.STALL_EVENT, semconv.STALL_RESOLVED_EVENT}
    for record in records:
        assert record.attributes is not None
        assert_defined(record.attributes)
        assert_belongs(f"event.{record.event_name}", record.attributes)


def test_every_kind_of_finding_is_a_value() -> None:
    """A new verdict or finding is a value of its attribute without a change to the registry's tables."""
    for kind in FindingKind:
        assert_defined({semconv.VERDICT: kind.value})
