"""A new kind of activity, record, end or verdict is decided on by all that choose among kinds, or lint fails.

Three rules together: who chooses does so in a `match` without a case for the rest; pyright names each such `match`
that a new kind is missing in; and what is published about kinds names all of them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import How
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.runs.tables.schema import OPERATIONS
from otel_torchdist.telemetry import semconv
from tests.kinds.choices import ENUMS, Choice, choices_in, half_choices_in
from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "otel_torchdist"
WRITES = "capture/"
"""The room that writes kinds and reads none."""
EXAMPLE = {"ranks": "rank 2", "rank": 2, "place": "load_batch at train.py:57"}
"""What the page on verdicts shows in next steps."""
SOURCES = {
    str(path.relative_to(PACKAGE)): path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
    if not str(path.relative_to(PACKAGE)).startswith(WRITES)
}
CHOICES = {choice for file, source in SOURCES.items() for choice in choices_in(file, source)}


def test_nobody_chooses_otherwise() -> None:
    """No list, table or chain of some kinds is in the package, for a new one would be left out of it in silence."""
    found = [f"{file}:{line}: {why}" for file, source in SOURCES.items() for line, why in half_choices_in(source)]
    assert found == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("EXACT = (How.CALL, How.WAIT)", "a list of kinds"),
        ("EXACT = frozenset({layout.How.CALL, layout.How.WAIT})", "a list of kinds"),
        ("ends = how in [How.CALL, How.WAIT]", "a list of kinds"),
        ("NAMES = {VerdictKind.DEAD: 'dead', VerdictKind.FROZEN: 'frozen'}", "a table of kinds"),
        ("ends = how is How.CALL or how is How.WAIT", "several kinds in one condition"),
        ("ends = how is not How.CALL and how is not How.WAIT", "several kinds in one condition"),
        ("match how:\n case How.CALL:\n  pass\n case _:\n  pass", "a case for whatever is left"),
        ("if kind is RecordKind.STEP:\n a()\nelif kind is RecordKind.SPLITS:\n b()", "a chain of conditions"),
        ("found = [one for one in all if one.kind is not ActivityKind.OPTIMIZER_STEP]", "all activities but one"),
        ("for one in all:\n if one.kind is ActivityKind.OPTIMIZER_STEP:\n  continue", "all activities but one"),
    ],
)
def test_such_choices_are_found(source: str, why: str) -> None:
    """The rule recognizes each form."""
    assert [found for _, found in half_choices_in(source)] == [why]


@pytest.mark.parametrize(
    "source",
    [
        "match how:\n case How.CALL | How.WAIT:\n  pass\n case How.POLL:\n  pass",
        "ENDS = {how: name(how) for how in How}",
        "is_wanted = activity.kind is ActivityKind.OPTIMIZER_STEP",
        "rows = (ActivityKind.BACKWARD, How.CALL)",
    ],
)
def test_other_code_is_left_alone(source: str) -> None:
    """A choice that is checked, a question about one kind, and a row with kinds of two sorts are no such choices."""
    assert list(half_choices_in(source)) == []


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_pyright_names_each_choice_that_lacks_a_kind(tmp_path: Path) -> None:
    """With one more member in each enum, pyright reports every `match` over kinds."""
    copy = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for enum, file in ENUMS.items():
        _add_member(copy / file, enum)
    files = sorted({f"{PACKAGE.name}/{choice.file}" for choice in CHOICES})
    settings = {"include": files, "strict": files, "pythonVersion": "3.10"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    missed = set(CHOICES)
    for report in json.loads(done.stdout)["generalDiagnostics"]:
        enum = re.search(r"(\w+)\.NEW_KIND", report["message"])
        if enum is not None and report["severity"] == "error":
            file = str(Path(report["file"]).relative_to(copy))
            missed.discard(Choice(file, _moved(file, report["range"]["start"]["line"] + 1), enum[1]))
    assert {choice.enum for choice in CHOICES} == set(ENUMS)
    assert sorted(missed) == []


def _add_member(path: Path, enum: str) -> None:
    source = path.read_text()
    [definition] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == enum]
    first = definition.body[1]
    lines = source.splitlines(keepends=True)
    value = '"new"' if enum == VerdictKind.__name__ else "99"
    lines.insert(first.lineno - 1, f"    NEW_KIND = {value}\n")
    path.write_text("".join(lines))


def _moved(file: str, line: int) -> int:
    """A line as it was before members were added: no `match` stands above an enum in a file that defines one."""
    return line - sum(path == file for path in ENUMS.values())


def test_ends_are_described() -> None:
    """The attribute of spans and the column of the archive name each end."""
    page = (REPOSITORY / "docs" / "spans.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| `{semconv.COMPLETION}` |")]
    [column] = [column.meaning for column in OPERATIONS if column.name == "ended_how"]
    for how in How:
        assert f"`{how.name.lower()}`" in row, how
        assert f"`{how.name.lower()}`" in column, how


def test_verdicts_are_described() -> None:
    """The page on verdicts has a row for each, and one for its next step."""
    page = (REPOSITORY / "docs" / "verdicts.md").read_text()
    rows = {kind: f"\n| [`{kind.value}`](verdicts/{kind.value}.md) | " for kind in VerdictKind}
    assert [kind for kind, row in rows.items() if row not in page] == []
    steps = {kind: kind.traits.next_step.format(**EXAMPLE) for kind in VerdictKind}
    assert [kind for kind, step in steps.items() if f"\n| `{kind.value}` | {step} |\n" not in page] == []
