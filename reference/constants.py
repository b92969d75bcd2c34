"""Reads the constants of a module with the docstrings beneath them, which Python does not keep at run time."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Constant:
    """A documented constant.

    Attributes:
        name: Name of the constant.
        value: Value of the constant.
        doc: The docstring beneath it; '' if there is none.
        section: The heading above it, from a comment like `# --- spans ---`; '' if there is none.
    """

    name: str
    value: object
    doc: str
    section: str


def constants(module: ModuleType) -> Iterator[Constant]:
    """Yield the public constants of a module, in the order of the source."""
    source = inspect.getsource(module)
    headings = [
        (number, line.strip("# -")) for number, line in enumerate(source.splitlines(), 1) if line.startswith("# --- ")
    ]
    body = ast.parse(source).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        target = _target(statement)
        if target is None or target.startswith("_"):
            continue
        section = next((text for number, text in reversed(headings) if number < statement.lineno), "")
        yield Constant(target, getattr(module, target), _docstring(following), section)


def _target(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return inspect.cleandoc(str(statement.value.value))
    return ""
