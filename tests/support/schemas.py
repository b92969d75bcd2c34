"""Checks the JSON of verdicts against the schemas that the package has."""

from __future__ import annotations

import functools
import json
from typing import Any, Final

from jsonschema import Draft202012Validator

from tests.support.repository import REPOSITORY

SCHEMAS: Final = REPOSITORY / "otel_torchdist" / "schemas"
ACTION: Final = "action.1"
DIAGNOSE: Final = "diagnose.2"


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """The validator of a schema."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def valid(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The document; fails if it does not fit the schema, or has keys that the schema does not name."""
    validator(name).validate(document)
    schema = validator(name).schema
    assert isinstance(schema, dict)
    unknown = document.keys() - schema["$defs"][schema["$ref"].rpartition("/")[2]]["properties"].keys()
    assert not unknown
    return document
