"""Each kind of verdict has a page with the same five headings, and each kind of finding has a section."""

from __future__ import annotations

import re

import pytest

from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.documented import page
from tests.support.repository import REPOSITORY

HEADINGS = ["What it means", "What to do now", "Usual causes", "How it was decided", "When it can be wrong"]


def test_no_page_without_a_kind() -> None:
    """The folder has a page for each kind, and no others."""
    names = {path.name for path in (REPOSITORY / "docs" / "verdicts").iterdir()}
    assert names == {f"{kind.value}.md" for kind in VerdictKind}


@pytest.mark.parametrize("kind", VerdictKind)
def test_verdict(kind: VerdictKind) -> None:
    """A page begins with a question and a sentence of that verdict, and has five sections with text."""
    begin, *sections = re.split(r"^## ", page(f"verdicts/{kind.value}.md"), flags=re.MULTILINE)
    assert re.match(rf"# .+\? \(`{kind.value}`\)\n\n```\n.+\n```\n", begin)
    assert [section.partition("\n")[0] for section in sections] == HEADINGS
    assert all(section.partition("\n")[2].strip() for section in sections)


@pytest.mark.parametrize("kind", FindingKind)
def test_finding(kind: FindingKind) -> None:
    """A section says what the finding means and what to do."""
    [section] = re.findall(rf"^## `{kind.value}`\n(.*?)(?=^## |\Z)", page("findings.md"), re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\*\*(.+?)\.\*\*", section, re.MULTILINE)[:2] == HEADINGS[:2]
