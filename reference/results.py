"""Generates the page on JSON results from the structs that are encoded."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, TypeGuard

import msgspec

from otel_torchdist.agent.actions.document import ActionDocument
from otel_torchdist.analysis.result import AnalysisResult
from otel_torchdist.cli.diagnose.live import LiveJobResult
from otel_torchdist.runs.diagnosis.result import DiagnosisResult
from otel_torchdist.runs.listing import RunListResult
from otel_torchdist.show.live.document import LiveAnswer
from reference.pages import on_a_line, table, titled_page

_INTRO: Final = (
    "`--json` prints one document. Keys are only ever added within a schema. Numbers are raw, with the unit in the "
    "key; unknown values are null. Keys of maps are text, also where they are ranks. As JSON Schema (2020-12): "
    "[`diagnose`](schemas/diagnose.2.json), [actions](schemas/action.1.json)."
)
_ACTIONS: Final = "What a `command` among the [actions](actions.md) gets on its standard input."
_LIVE: Final = (
    "What the [live page](live-page.md) draws. It may change with any version, and has no schema: "
    "[`/metrics`](metrics.md) is the interface for programs."
)
_COMMANDS: Final = {
    "analyze": (AnalysisResult,),
    "diagnose": (DiagnosisResult, LiveJobResult, RunListResult),
}
_PLAIN: Final = {int: "number", float: "number", str: "text", bool: "true or false", types.NoneType: "null"}


def results_page() -> str:
    """Return the page of all structs in results, in the order of their first use."""
    seen: dict[type, None] = {}
    commands = [
        part
        for command, results in _COMMANDS.items()
        for part in (f"## `{command}`", *(part for result in results for part in _new_sections(result, seen)))
    ]
    actions = ("## Actions", _ACTIONS, *_new_sections(ActionDocument, seen))
    live = ("## `/live.json`", _LIVE, *_new_sections(LiveAnswer, seen))
    return titled_page("JSON results", "docstrings of structs", _INTRO, *commands, *actions, *live)


def _new_sections(struct: type, seen: dict[type, None]) -> Iterator[str]:
    """Yield the sections of a struct and of all structs within it, except those in `seen`."""
    if struct in seen:
        return
    seen[struct] = None
    yield from _section(struct)
    for hint in typing.get_type_hints(struct).values():
        for inner in _inside(hint):
            yield from _new_sections(inner, seen)


def _is_struct(hint: Any) -> TypeGuard[type]:
    return isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint))


def _keys(struct: type) -> dict[str, str]:
    """Return the JSON key of each field of a struct."""
    if issubclass(struct, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    return {name: name for name in struct.__dataclass_fields__}


def _inside(hint: Any) -> Iterator[type]:
    if _is_struct(hint):
        yield hint
    for argument in typing.get_args(hint):
        yield from _inside(argument)


def parts_of(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the summary of a docstring, and the meanings of the attributes."""
    summary, _, attributes = inspect.cleandoc(docstring).partition("Attributes:")
    return summary, dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE))


def _section(struct: type) -> Iterator[str]:
    summary, meanings = parts_of(struct.__doc__ or "")
    hints = typing.get_type_hints(struct)
    rows = [[f"`{key}`", _json_type(hints[name]), on_a_line(meanings[name])] for name, key in _keys(struct).items()]
    yield f"### {struct.__name__}"
    yield on_a_line(summary)
    yield table(["key", "value", "meaning"], rows)


def _json_type(hint: Any) -> str:
    """Return the name of a type in JSON: `list of Row`, `number or null`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_json_type(argument) for argument in arguments))
    if origin is tuple:
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return f"list of {_json_type(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"map to {_json_type(arguments[1])}"
    if _is_struct(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "text"
    return _PLAIN[hint]
