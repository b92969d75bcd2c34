"""What is published about findings leaves none of their kinds out: an alert selects each, and the manual names each."""

from __future__ import annotations

import ast
import itertools
import re

import pytest
import yaml

from otel_torchdist import semconv
from otel_torchdist.semconv import stalls
from otel_torchdist.stall.findings.remote_calls import CallTrouble
from otel_torchdist.stall.findings.slow import SlowKind
from otel_torchdist.telemetry.metrics.definitions.table import NUMBER_METRICS
from tests.support.repository import REPOSITORY

RULES = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "rules" / "alerts.yaml").read_text())
SELECTED = re.compile(r"torchdist_finding_info\{([^}]*)\}")
PAGE = (REPOSITORY / "docs" / "verdicts.md").read_text()


def _findings() -> set[tuple[str, str]]:
    """Verdict and operation of each kind of finding; '' stands for any operation."""
    body = ast.parse((REPOSITORY / "otel_torchdist" / "semconv" / "stalls.py").read_text()).body
    documented = [
        before.target.id
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and str(after.value.value).startswith("The verdict of a finding")
    ]
    named = {(str(getattr(stalls, name)), "") for name in documented if name != "STARVED"}
    assert (semconv.STRAGGLER, "") in named
    return named | {(kind.value, "") for kind in SlowKind} | {(one.value, semconv.REMOTE_CALL) for one in CallTrouble}


FINDINGS = sorted(_findings())


def _selectors() -> list[dict[str, str]]:
    """Return the regular expressions by which alerts select, by label."""
    expressions = [rule["expr"].partition(" unless ")[0] for group in RULES["groups"] for rule in group["rules"]]
    found = [match for expression in expressions for match in SELECTED.findall(expression)]
    return [dict(re.findall(r'(\w+)=~?"([^"]*)"', selector)) for selector in found]


@pytest.mark.parametrize(("verdict", "operation"), FINDINGS)
def test_one_alert_each(verdict: str, operation: str) -> None:
    """One alert fires on a finding of this kind."""
    labels = {"verdict": verdict, "operation": operation or "all_reduce"}
    selected = [
        one for one in _selectors() if all(re.fullmatch(wanted, labels[label]) for label, wanted in one.items())
    ]
    assert len(selected) == 1


@pytest.mark.parametrize("verdict", sorted({verdict for verdict, _ in FINDINGS}))
def test_in_the_manual(verdict: str) -> None:
    """The page on verdicts names it, and so does the metric's help."""
    assert f"`{verdict}`" in PAGE
    [metric] = [one for one in NUMBER_METRICS if one.name == semconv.FINDING_INFO]
    assert re.search(rf"\b{verdict}\b", metric.help)
