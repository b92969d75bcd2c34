"""Finds where source chooses among kinds: of activities, records, ends, verdicts and findings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

ENUMS: Final = {
    "ActivityKind": "model/kinds.py",
    "Detail": "model/activity_kinds.py",
    "How": "model/kinds.py",
    "RecordKind": "model/kinds.py",
    "AtTimeout": "model/names.py",
    "CallStage": "judge/world/occupations.py",
    "CauseKind": "analysis/critical_path/critical_path.py",
    "Doubt": "judge/verdict/verdict.py",
    "Field": "judge/world/mismatch.py",
    "FrameOwner": "model/code_owner.py",
    "Outcome": "judge/verdict/verdict.py",
    "Severity": "model/reports/finding.py",
    "PlaceSource": "judge/world/places.py",
    "Standing": "judge/verdict/roll_call.py",
    "SymptomKind": "model/rank_state/symptoms.py",
    "VerdictKind": "model/reports/verdict_kinds.py",
    "EndKind": "judge/verdict/deaths.py",
}
"""The kinds among which `match` statements choose, and where they are defined."""
_KINDS: Final = {*ENUMS, "FindingKind"}
"""Nobody chooses among findings: they say all about themselves."""
_NEGATIVE: Final = (ast.IsNot, ast.NotEq, ast.NotIn)
_LEAVES: Final = (ast.Return, ast.Continue, ast.Pass)


@dataclass(frozen=True, order=True)
class Choice:
    """A `match` over kinds.

    Attributes:
        file: Where it is.
        line: Its line.
        enum: The kinds.
    """

    file: str
    line: int
    enum: str


def choices_in(file: str, source: str) -> Iterator[Choice]:
    """Yield each `match` of a file that is over kinds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Match):
            for enum in sorted({enum for case in node.cases for enum, _ in _members(case.pattern)}):
                yield Choice(file, node.lineno, enum)


def half_choices_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield lines with a choice that a new kind would pass through unnoticed, and why."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                if any(len(named) > 1 for named in _by_enum(elements)):
                    yield node.lineno, "a list of kinds"
            case ast.Dict(keys=keys):
                if any(len(named) > 1 for named in _by_enum([key for key in keys if key is not None])):
                    yield node.lineno, "a table of kinds"
            case ast.BoolOp(values=values):
                compared = [part for value in values if isinstance(value, ast.Compare) for part in _compared(value)]
                if any(len(named) > 1 for named in _by_enum(compared)):
                    yield node.lineno, "several kinds in one condition"
            case ast.Match(cases=cases):
                is_open = any(_is_wildcard(case.pattern) for case in cases)
                if is_open and any(_members(case.pattern) for case in cases):
                    yield node.lineno, "a case for whatever is left"
            case ast.If(test=ast.Compare() as test, orelse=[ast.If(test=ast.Compare() as other)]):
                if any(len(named) > 1 for named in _by_enum([*_compared(test), *_compared(other)])):
                    yield node.lineno, "a chain of conditions"
            case _:
                pass
        yield from _exclusions(node)


def _exclusions(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Everything but one kind of activity; of the other kinds there is one whose name stands for all the rest."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], _NEGATIVE) and _is_of_activities(_compared(node)):
        yield node.lineno, "all activities but one"
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.body[0], _LEAVES):
        is_empty = not isinstance(node.body[0], ast.Return) or node.body[0].value is None
        is_positive = not isinstance(node.test.ops[0], _NEGATIVE)
        if is_empty and is_positive and _is_of_activities(_compared(node.test)):
            yield node.lineno, "all activities but one"


def _is_of_activities(nodes: list[ast.expr]) -> bool:
    return any(enum == "ActivityKind" for node in nodes for enum, _ in _members(node))


def _compared(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _by_enum(nodes: list[ast.expr]) -> list[set[str]]:
    """The members that some expressions are, by enum."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            for enum, member in _members(node):
                found.setdefault(enum, set()).add(member)
    return list(found.values())


def _members(node: ast.AST) -> list[tuple[str, str]]:
    """The members that are named in a part of the source: of `ActivityKind`, also as `layout.ActivityKind`."""
    found: list[tuple[str, str]] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr.isupper():
            owner = part.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in _KINDS:
                found.append((name, part.attr))
    return found


def _is_wildcard(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None
