"""What is published about findings leaves none of their kinds out: an alert selects each, and the manual names each."""

from __future__ import annotations

import re

import pytest
import yaml

from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from tests.support.repository import REPOSITORY

RULES = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "rules" / "alerts.yaml").read_text())
SELECTED = re.compile(r"torchdist_finding_info\{([^}]*)\}")
OF_REMOTE_CALLS = (FindingKind.STARVED, FindingKind.FROZEN, FindingKind.DEAD)
PAGE = (REPOSITORY / "docs" / "findings.md").read_text()


FINDINGS = {kind: semconv.REMOTE_CALL if kind in OF_REMOTE_CALLS else "all_reduce" for kind in FindingKind}
"""The operation of a finding of each kind, as far as alerts tell them apart."""


def _selectors() -> list[dict[str, str]]:
    """Return the regular expressions by which alerts select, by label."""
    expressions = [rule["expr"].partition(" unless ")[0] for group in RULES["groups"] for rule in group["rules"]]
    found = [match for expression in expressions for match in SELECTED.findall(expression)]
    return [dict(re.findall(r'(\w+)=~?"([^"]*)"', selector)) for selector in found]


@pytest.mark.parametrize("kind", FindingKind)
def test_one_alert_each(kind: FindingKind) -> None:
    """One alert fires on a finding of this kind."""
    labels = {"verdict": kind.value, "operation": FINDINGS[kind]}
    selected = [
        one for one in _selectors() if all(re.fullmatch(wanted, labels[label]) for label, wanted in one.items())
    ]
    assert len(selected) == 1


@pytest.mark.parametrize("kind", FindingKind)
def test_in_the_manual(kind: FindingKind) -> None:
    """The page on findings has a section on it, and the metric's help names it."""
    assert f"\n## `{kind.value}`\n" in PAGE
    [metric] = [one for one in NUMBER_METRICS if one.name == "torchdist_finding_info"]
    assert re.search(rf"\b{kind.value}\b", metric.help)
