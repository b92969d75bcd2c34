"""Names of settings in all files for deployment, and in examples: every one of them is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_torchdist import environment_variables
from otel_torchdist.telemetry import semconv

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(path for folder in (DEPLOY, DEPLOY.parent / "examples") for path in folder.rglob("*"))
TEXTS = [path for path in FILES if path.suffix in {".yaml", ".yml", ".md", ".sh", ".sbatch"}]
SCRIPTS = [path for path in FILES if path.suffix in {".sh", ".sbatch"}]


def test_settings_exist() -> None:
    """Every setting of ours in any of these files is one that we read."""
    pattern = re.compile(r"OTEL_PYTHON_TORCHDIST_[A-Z_]+[A-Z]")
    written = {name for path in TEXTS for name in pattern.findall(path.read_text())}
    assert "OTEL_PYTHON_TORCHDIST_ENABLED" in written
    assert written - set(vars(environment_variables)) == set()


@pytest.mark.parametrize("path", ["prometheus/prometheus.yml", "prometheus/examples/secure.yaml"])
def test_labels_of_pushed_metrics(path: str) -> None:
    """Prometheus gives every attribute of pushed metrics that is ours the label that agents use on their own pages."""
    pattern = re.compile(r"source_labels: \[(torchdist_\w+)\], regex: \(\.\+\), target_label: (\w+)")
    attributes = {label: name.replace(".", "_") for label, name in semconv.OTEL_METRIC_ATTRIBUTES.items()}
    ours = {(name, label) for label, name in attributes.items() if name.startswith("torchdist_") and name != label}
    assert set(pattern.findall((DEPLOY / path).read_text())) == ours


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts(script: Path) -> None:
    """Shellcheck finds nothing in the shell scripts."""
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "--shell=bash", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
