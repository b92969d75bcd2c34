"""What a type looks like to msgspec, as JSON that can be compared with that of an earlier version."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from msgspec import inspect

Schema = dict[str, Any]
"""By the name of each class: its kind, and its fields or values."""


def schema_of(*types: Any) -> Schema:
    """The schema of some types, and of all classes within."""
    schema: Schema = {}
    for info in inspect.multi_type_info(types):
        _described(info, schema)
    return schema


def incompatible(earlier: Schema, now: Schema) -> list[str]:
    """The differences that a process with the other schema would misunderstand or reject, a line each.

    A class whose fields have names may get new ones with a default. Nothing else may change.
    """
    found = [f"{name} is gone" for name in earlier.keys() - now.keys()]
    for name in sorted(earlier.keys() & now.keys()):
        old, new = earlier[name], now[name]
        if old["kind"] != new["kind"] or old["kind"] != "fields by name":
            found += [f"{name} differs"] * (old != new)
            continue
        before, after = old["fields"], new["fields"]
        found += [f"{name}.{key} differs" for key in before if before[key] != after.get(key)]
        found += [f"{name}.{key} is new, without a default" for key in after.keys() - before.keys() if after[key][1]]
    return found


def _described(info: Any, schema: Schema) -> Any:
    match info:
        case inspect.EnumType():
            members: list[enum.Enum] = list(info.cls)
            schema[info.cls.__qualname__] = {"kind": "values", "values": [member.value for member in members]}
            return info.cls.__qualname__
        case inspect.DataclassType() | inspect.StructType() | inspect.NamedTupleType():
            return _described_class(info, schema)
        case inspect.CustomType():
            return info.cls.__qualname__
        case _:
            return _described_plain(info, schema)


def _described_class(info: Any, schema: Schema) -> str:
    name = info.cls.__qualname__
    if name in schema:
        return name
    is_named = not isinstance(info, inspect.NamedTupleType) and not getattr(info, "array_like", False)
    entry: dict[str, Any] = {"kind": "fields by name" if is_named else "fields by position", "fields": {}}
    schema[name] = entry
    entry["fields"] = {field.encode_name: [_described(field.type, schema), field.required] for field in info.fields}
    return name


def _described_plain(info: Any, schema: Schema) -> Any:
    """Describe a type without a name, with its bounds and the types within."""
    parts: dict[str, Any] = {}
    for key in info.__struct_fields__:
        value = getattr(info, key)
        if isinstance(value, inspect.Type):
            parts[key] = _described(value, schema)
        elif isinstance(value, tuple):
            parts[key] = [_described(each, schema) if isinstance(each, inspect.Type) else each for each in value]
        elif value is not None:
            parts[key] = value
    name = type(info).__name__.removesuffix("Type").lower()
    return {name: msgspec.to_builtins(parts)} if parts else name
