"""The PrometheusRule: up to date, and generated without loss from any rule files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).parents[2] / "deploy" / "kubernetes" / "prometheus_rule.py"
ALERTS = """\
groups:
  - name: alerts
    rules:
      - alert: TorchdistStalled
        expr: |
          max by (job, run) (torchdist_stalled)
            > 0
        annotations:
          summary: "run {{ $labels.run }}: stalled"
"""
RECORDING = "groups: [{name: recording, interval: 15s, rules: [{record: 'a:b:c', expr: sum(d)}]}]\n"


def make(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A directory with two rule files."""
    folder = tmp_path / "rules"
    (folder / "tests").mkdir(parents=True)
    (folder / "alerts.yaml").write_text(ALERTS)
    (folder / "recording.yaml").write_text(RECORDING)
    (folder / "tests" / "alerts.yaml").write_text("tests: []\n")
    return folder


def test_is_up_to_date() -> None:
    """The file in the repository is what the rule files generate."""
    done = make("--check")
    assert done.returncode == 0, done.stderr


def test_same_groups(rules: Path, tmp_path: Path) -> None:
    """The result has the groups of all files unchanged, without those of the rules' own tests."""
    result = tmp_path / "rule.yaml"
    assert make("--rules", rules, "--result", result).returncode == 0
    resource = yaml.safe_load(result.read_text())
    assert (resource["apiVersion"], resource["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    expected = [group for text in (ALERTS, RECORDING) for group in yaml.safe_load(text)["groups"]]
    assert resource["spec"] == {"groups": expected}


def test_check_finds_a_difference(rules: Path, tmp_path: Path) -> None:
    """A missing or outdated result is reported, and left unchanged."""
    result = tmp_path / "rule.yaml"
    arguments = ("--rules", rules, "--result", result)
    assert make("--check", *arguments).returncode == 1
    assert not result.exists()
    make(*arguments)
    assert make("--check", *arguments).returncode == 0
    (rules / "alerts.yaml").write_text(ALERTS.replace("> 0", "> 1"))
    done = make("--check", *arguments)
    assert done.returncode == 1
    assert "make kubernetes-rules" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [("tests: []\n", "it has no list of groups"), (ALERTS, "the same name"), ("a: [\n", "bad.yaml")],
)
def test_bad_rules(rules: Path, tmp_path: Path, text: str, said: str) -> None:
    """Rules that cannot be combined are one error, and nothing is written."""
    (rules / "bad.yaml").write_text(text)
    done = make("--rules", rules, "--result", tmp_path / "rule.yaml")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "rule.yaml").exists()
