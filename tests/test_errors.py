"""All exceptions of the package have one base class, and the docstring of `errors` draws their tree."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from pathlib import Path

import otel_torchdist
from otel_torchdist import errors

PACKAGE = Path(otel_torchdist.__file__).parent


@functools.cache
def exceptions() -> list[tuple[str, str, list[str]]]:
    """Name, module and base classes of each exception class in the sources, also of classes in functions."""
    found: list[tuple[str, str, list[str]]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                if any(is_exception(base) for base in bases):
                    found.append((node.name, module, bases))
    return found


def is_exception(name: str) -> bool:
    """Whether a class of this name is an exception: one of Python's, or one that is named like one."""
    known = getattr(builtins, name, None)
    return (isinstance(known, type) and issubclass(known, BaseException)) or name.endswith(("Error", "Exception"))


def test_one_base_class() -> None:
    """Every exception class of the package derives from `TorchDistError`, which alone derives from one of Python's."""
    bases_of = {name: bases for name, _, bases in exceptions()}
    assert bases_of.pop("TorchDistError") == ["Exception"]
    assert len(bases_of) >= 9
    assert {name for name, bases in bases_of.items() if not {*bases} & {"TorchDistError", *bases_of}} == set()


def test_tree_is_complete() -> None:
    """The tree in the docstring has every exception class, with its module."""
    drawn = re.findall(r"^  \+ (\w+) +([\w.]+) +\S", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted((name, module) for name, module, _ in exceptions() if name != "TorchDistError")
