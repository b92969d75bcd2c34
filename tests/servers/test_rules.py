"""Prometheus' and Alertmanager's own checks of the files in deploy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.native.servers import DEPLOY
from tests.servers.certificates import make_certificate
from tests.servers.rules import RULES

TESTS = sorted((DEPLOY / "prometheus" / "rules" / "tests").glob("*.yaml"))


def check(*command: str | Path) -> str:
    """Run a tool; returns its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=DEPLOY / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.stem)
def test_rules_are_rules(rules: Path, binaries: Path) -> None:
    """The rules pass promtool, lints included."""
    assert "SUCCESS" in check(binaries / "promtool", "check", "rules", "--lint=all", "--lint-fatal", rules)


@pytest.mark.parametrize("tests", TESTS, ids=lambda path: path.stem)
def test_rules_fire_when_they_should(tests: Path, binaries: Path) -> None:
    """Each alert and recording rule is evaluated on made-up series, firing and not firing."""
    assert "SUCCESS" in check(binaries / "promtool", "test", "rules", tests)


def test_every_rule_has_a_test() -> None:
    """Each alert is seen firing and not firing at some moment, and each recording rule with a value."""
    cases = [case for path in TESTS for case in yaml.safe_load(path.read_text())["tests"]]
    moments = [moment for case in cases for moment in case.get("alert_rule_test", [])]
    queries = [query for case in cases for query in case.get("promql_expr_test", []) if query.get("exp_samples")]
    quiet = [
        query["expr"] for case in cases for query in case.get("promql_expr_test", []) if not query.get("exp_samples")
    ]
    firing = {moment["alertname"] for moment in moments if moment.get("exp_alerts")}
    silent = {moment["alertname"] for moment in moments if not moment.get("exp_alerts")}
    shown = " ".join(f"{query['expr']} {query['exp_samples']}" for query in queries)
    rules = [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    assert len(rules) > 20
    for rule in rules:
        if "record" in rule:
            assert rule["record"] in shown
        else:
            assert rule["alert"] in firing or rule["alert"] in shown, rule["alert"]
            assert rule["alert"] in silent or any(rule["alert"] in expression for expression in quiet), rule["alert"]


def test_configurations_are_understood(binaries: Path) -> None:
    """The configurations pass promtool and amtool."""
    check(binaries / "promtool", "check", "config", "--syntax-only", "prometheus.yml")
    check(binaries / "amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")


def test_example_of_tls_for_prometheus_is_understood(binaries: Path, tmp_path: Path) -> None:
    """The configuration for TLS is accepted, with a certificate beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates need openssl")
    make_certificate(tmp_path, "prometheus")
    example = shutil.copy(DEPLOY / "prometheus" / "examples" / "web.yaml", tmp_path)
    check(binaries / "promtool", "check", "web-config", example)
