"""A class name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "otel_torchdist"


def test_no_class_name_is_in_two_modules() -> None:
    """Each public class has a name of its own; private ones are known in their module only."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(modules) > 500
    assert {name: files for name, files in modules.items() if len(files) > 1} == {}
