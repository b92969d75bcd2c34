"""A finding is a row among the kinds, and a file that finds it and says all about it; outputs render any finding."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from otel_torchdist.model.reports.finding import FindingKind
from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "otel_torchdist"
NAMED = re.compile(rf"\bFindingKind\.({'|'.join(kind.name for kind in FindingKind)})\b")
OUTPUTS = (
    "agent/actions",
    "agent/reading",
    "cli/output",
    "cli/watch",
    "judge/stall/reporting",
    "show/live",
    "show/report",
    "telemetry",
)
FOUND_IN = ("agent/path_watch", "judge/stall/findings")


def _naming(folders: tuple[str, ...], kind: FindingKind | None = None) -> Iterator[str]:
    """Yield the modules in some folders that name a kind, or any."""
    for folder in folders:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            if any(kind in (None, FindingKind[name]) for name in NAMED.findall(path.read_text())):
                yield str(path.relative_to(PACKAGE))


def test_outputs_render_any_finding() -> None:
    """Log, spans, events, metrics, pages, `watch` and actions name no kind."""
    assert [path for path in _naming(OUTPUTS) if not path.startswith(FOUND_IN)] == []


@pytest.mark.parametrize("kind", FindingKind)
def test_one_file_finds_each(kind: FindingKind) -> None:
    """One file finds each kind."""
    assert len(list(_naming(FOUND_IN, kind))) == 1
