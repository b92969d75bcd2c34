"""Generates JSON Schemas from the structs that are encoded, and the record of their keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from otel_torchdist.agent.actions.document import SCHEMA, ActionDocument
from otel_torchdist.runs.diagnosis.result import SCHEMA as DIAGNOSIS_SCHEMA
from otel_torchdist.runs.diagnosis.result import DiagnosisResult
from reference.pages import on_a_line
from reference.results import parts_of

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DOCUMENTS: Final = {
    f"action.{SCHEMA}": (ActionDocument, "The standard input of a command among the actions."),
    f"diagnose.{DIAGNOSIS_SCHEMA}": (DiagnosisResult, "The output of `otel-torchdist diagnose --json`."),
}
KEYS: Final = Path(__file__).with_name("keys.json")
"""Every key that a schema has ever had, with its type. `make docs` adds keys, and never removes or changes one."""


def schemas() -> dict[str, dict[str, Any]]:
    """Return each schema by name, such as `action.1`."""
    return {name: _schema(name, struct, meaning) for name, (struct, meaning) in _DOCUMENTS.items()}


def schema_files(docs: Path, package: Path) -> dict[Path, str]:
    """Return the text of each schema, for the pages and for the package, and of the record of keys."""
    texts = {f"{name}.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()}
    return {
        **{docs / "schemas" / name: text for name, text in texts.items()},
        **{package / "schemas" / name: text for name, text in texts.items()},
        KEYS: json.dumps(recorded_keys(), indent=2, sort_keys=True) + "\n",
    }


def keys() -> dict[str, dict[str, Any]]:
    """Return the type of each key of the current schemas, as `schema/struct/key`."""
    return {
        f"{name}/{struct}/{key}": _without_texts(described)
        for name, schema in schemas().items()
        for struct, definition in schema["$defs"].items()
        for key, described in definition.get("properties", {}).items()
    }


def recorded_keys() -> dict[str, dict[str, Any]]:
    """Return the recorded keys, and those that are new."""
    recorded: dict[str, dict[str, Any]] = json.loads(KEYS.read_text(encoding="utf-8")) if KEYS.exists() else {}
    return {**keys(), **recorded}


def _schema(name: str, struct: type, meaning: str) -> dict[str, Any]:
    schema = msgspec.json.schema(struct)
    for definition in schema["$defs"].values():
        summary, meanings = parts_of(definition.get("description", ""))
        definition["description"] = on_a_line(summary)
        for key, described in definition.get("properties", {}).items():
            described["description"] = on_a_line(meanings[key])
    number = schema["$defs"][struct.__name__]["properties"]["schema"]
    number["const"] = int(name.rpartition(".")[2])
    return {"$schema": _DIALECT, "$id": f"urn:otel-torchdist:{name}", "title": name, "description": meaning, **schema}


def _without_texts(described: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in described.items() if name not in ("description", "default", "title")}
