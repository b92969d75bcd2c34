"""JSON schemas of structs, with the descriptions of fields that their docstrings give."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final, TypeAlias

import msgspec

JsonSchema: TypeAlias = dict[str, Any]
_FIELD: Final = re.compile(r"^    (\w+): (.*)$")
_ATTRIBUTES: Final = "\nAttributes:\n"


def schema_of(struct: type[msgspec.Struct]) -> JsonSchema:
    """Return the schema of a struct as one document, whose root is an object, as the protocol requires."""
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    for component in components.values():
        _describe(component)
    root: JsonSchema = components.pop(struct.__name__)
    return {**root, "$defs": components} if components else root


def _describe(component: JsonSchema) -> None:
    """Move the part of a docstring on attributes into the descriptions of properties."""
    text, _, attributes = inspect.cleandoc(component.get("description", "")).partition(_ATTRIBUTES)
    if text:
        component["description"] = text.strip()
    properties: JsonSchema = component.get("properties", {})
    for name, meaning in _meanings(attributes).items():
        if name in properties:
            properties[name] = {**properties[name], "description": meaning}


def _meanings(attributes: str) -> dict[str, str]:
    meanings: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        if match := _FIELD.match(line):
            name = match[1]
            meanings[name] = match[2]
        elif name and line.strip():
            meanings[name] += f" {line.strip()}"
    return meanings
