"""Generates the list of public names on the page of the Python API."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from otel_torchdist import runs
from otel_torchdist.runs.tables.schema import ACTIVITIES
from reference.pages import TABLES_END, on_a_line, table

BEGIN: Final = "<!-- Made from otel_torchdist/runs by `make docs`: change it there. -->"
_NOT_PROMISED: Final = ("histories",)
"""Methods for other modules of the package."""
_SPECIAL: Final = ("__len__", "__arrow_c_stream__", "__arrow_c_schema__")


def with_names(page: str) -> str:
    """Return the page with the public names of `otel_torchdist.runs`."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(TABLES_END)
    parts = [part for name in runs.__all__ for part in _section(name, getattr(runs, name))]
    columns = [[f"`{column.name}`", f"`{column.type}`", column.meaning] for column in ACTIVITIES]
    activities = ("### Columns of `activities`", table(["column", "type", "meaning"], columns))
    return "\n\n".join([before + BEGIN, "## Names", *parts, *activities, TABLES_END + after])


def _section(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"### `{name}{_signature(value)}`"
        yield _described(value)
        return
    yield f"### `{name}`"
    yield _summary(value)
    if issubclass(value, Enum):
        yield table(["member", "value"], [[f"`{member.name}`", f"`{member.value}`"] for member in value])
        return
    rows = [[f"`{attribute}`", meaning] for attribute, meaning in _attributes(value).items()]
    rows += [[f"`{text}`", meaning] for text, meaning in _members(value)]
    if rows:
        yield table(["member", "meaning"], rows)


def _members(value: type) -> Iterator[tuple[str, str]]:
    """Yield the public properties and methods of a class in the order of its source."""
    for name, member in vars(value).items():
        if (name.startswith("_") and name not in _SPECIAL) or name in _NOT_PROMISED:
            continue
        if isinstance(member, (property, functools.cached_property)):
            yield name, _summary(member)
        elif inspect.isfunction(member) or hasattr(member, "__wrapped__"):
            yield f"{name}{_signature(member)}", _summary(member)


def _attributes(value: type) -> dict[str, str]:
    """Return the attributes that a docstring lists, on a line each."""
    _, _, attributes = inspect.cleandoc(value.__doc__ or "").partition("Attributes:")
    return {
        name: on_a_line(meaning)
        for name, meaning in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    }


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    kept = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def _summary(documented: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    return on_a_line(inspect.cleandoc(documented.__doc__ or "").partition("\n\n")[0])


def _described(function: Any) -> str:
    """Return a docstring as Markdown, its sections as lists."""
    lines: list[str] = []
    for line in inspect.cleandoc(function.__doc__ or "").split("\n"):
        if re.fullmatch(r"(Args|Raises|Returns):", line):
            lines += [{"Args:": "Parameters:", "Raises:": "Errors:", "Returns:": "Result:"}[line], ""]
        elif found := re.match(r" {4}(\**\w+): (.*)", line):
            lines.append(f"- `{found[1]}`: {found[2]}")
        else:
            lines.append(re.sub(r"^ {4}(?: {4})?", "  ", line))
    return "\n".join(lines)
