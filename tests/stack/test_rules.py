"""Prometheus' and Alertmanager's own checks of what is in deploy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.native.servers import DEPLOY
from tests.stack.certificates import make_certificate
from tests.stack.rules import RULES

TESTS = sorted((DEPLOY / "prometheus" / "rules" / "tests").glob("*.yaml"))


def check(*command: str | Path) -> str:
    """Run a tool; returns what it says."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=DEPLOY / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.stem)
def test_rules_are_rules(rules: Path, binaries: Path) -> None:
    """And promtool's lints find nothing."""
    assert "SUCCESS" in check(binaries / "promtool", "check", "rules", "--lint=all", "--lint-fatal", rules)


@pytest.mark.parametrize("tests", TESTS, ids=lambda path: path.stem)
def test_rules_fire_when_they_should(tests: Path, binaries: Path) -> None:
    """Each alert and recording rule on made-up series, firing and not firing."""
    assert "SUCCESS" in check(binaries / "promtool", "test", "rules", tests)


def test_every_rule_has_a_test() -> None:
    """By name, in some file of tests."""
    tested = "\n".join(path.read_text() for path in TESTS)
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    names = {rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]}
    assert len(names) > 20
    assert {name for name in names if name not in tested} == set()


def test_configurations_are_understood(binaries: Path) -> None:
    """By promtool and amtool."""
    check(binaries / "promtool", "check", "config", "--syntax-only", "prometheus.yml")
    check(binaries / "amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")


def test_example_of_tls_for_prometheus_is_understood(binaries: Path, tmp_path: Path) -> None:
    """With a certificate beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates need openssl")
    make_certificate(tmp_path, "prometheus")
    example = shutil.copy(DEPLOY / "prometheus" / "examples" / "web.yaml", tmp_path)
    check(binaries / "promtool", "check", "web-config", example)
