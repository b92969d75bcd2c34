"""The page on JSON results, from the structs whose encoding it is."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from otel_torchdist.analysis.result import AnalysisResult
from reference.pages import on_a_line, table, titled_page

_INTRO: Final = (
    "`--json` prints one document. Keys are only ever added within a schema. Numbers are raw, with the unit in the "
    "key; unknown values are null. Keys of maps are text, also where they are ranks."
)
_PLAIN: Final = {int: "number", float: "number", str: "text", bool: "true or false", types.NoneType: "null"}


def results_page() -> str:
    """Every struct of the results, in the order in which they are met."""
    parts = [part for struct in _structs(AnalysisResult) for part in _section(struct)]
    return titled_page("JSON results", "otel_torchdist/analysis/result.py", _INTRO, "## `analyze`", *parts)


def _structs(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    found: dict[type[msgspec.Struct], None] = {}

    def visit(one: type[msgspec.Struct]) -> None:
        if one not in found:
            found[one] = None
            for hint in typing.get_type_hints(one).values():
                for inner in _inside(hint):
                    visit(inner)

    visit(struct)
    return [*found]


def _inside(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in typing.get_args(hint):
        yield from _inside(argument)


def _section(struct: type[msgspec.Struct]) -> Iterator[str]:
    summary, _, attributes = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:")
    meanings = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE))
    hints = typing.get_type_hints(struct)
    rows = [
        [f"`{field.encode_name}`", _named(hints[field.name]), on_a_line(meanings[field.name])]
        for field in msgspec.structs.fields(struct)
    ]
    yield f"### {struct.__name__}"
    yield on_a_line(summary)
    yield table(["key", "value", "meaning"], rows)


def _named(hint: Any) -> str:
    """Name a type as JSON has it: `list of Row`, `number or null`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_named(one) for one in arguments)
    if origin is tuple:
        inner = [one for one in arguments if one is not Ellipsis]
        return f"list of {_named(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"map to {_named(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "text"
    return _PLAIN[hint]
