"""Each alert has a `runbook_url` that leads to a page, and to a heading of it, whichever verdict the alert is about."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.show.serving.docs import NAMES, page_of
from tests.support.repository import REPOSITORY

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "rules" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
BASE = re.compile(
    r"\{\{ with \$externalLabels\.torchdist_docs_url \}\}\{\{ \. \}\}\{\{ else \}\}http://.+"
    r"\{\{ else \}\}localhost:9464\{\{ end \}\}/docs\{\{ end \}\}(?P<path>/.+)"
)


def _verdicts(rule: dict[str, Any]) -> list[str]:
    """Return the values of the label `verdict` for which a rule may fire."""
    wanted = re.search(r'torchdist_finding_info\{[^}]*verdict=~?"([^"]+)"', rule["expr"])
    if wanted is None:
        return [kind.value for kind in VerdictKind]
    return [kind.value for kind in FindingKind if re.fullmatch(wanted[1], kind.value)]


def _paths(rule: dict[str, Any]) -> set[str]:
    """Return where its `runbook_url` can lead, below the address of all pages."""
    match = BASE.fullmatch(rule["annotations"]["runbook_url"])
    assert match is not None, rule["annotations"]["runbook_url"]
    path = match["path"]
    found = {path}
    if "{{ with" in path:  # the verdict is looked up, and may not be known any more
        begin, _, rest = path.partition("{{ with")
        found = {begin, f"{begin}/{{{{ $labels.verdict }}}}"}
        assert rest.endswith('}}/{{ . | first | label "verdict" }}{{ end }}')
    return {one.replace("{{ $labels.verdict }}", verdict) for one in found for verdict in _verdicts(rule)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_runbook(rule: dict[str, Any]) -> None:
    """Its page is one that agents serve, and has the heading."""
    paths = _paths(rule)
    assert paths
    for path in paths:
        name, _, heading = path.removeprefix("/").partition("#")
        assert name in NAMES, path
        assert not heading or f' id="{heading}"' in page_of(name).body, path


def test_every_verdict_is_reached() -> None:
    """The alert on stalls leads to the page of each kind of verdict."""
    [rule] = [rule for rule in RULES if rule["alert"] == "TorchdistStalled"]
    assert {f"/verdicts/{kind.value}" for kind in VerdictKind} < _paths(rule)
