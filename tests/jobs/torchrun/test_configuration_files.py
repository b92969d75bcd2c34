"""Jobs under torchrun that only a file switches on: OTEL_CONFIG_FILE, or a file on the node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_torchdist.environment_variables import (
    OTEL_CONFIG_FILE,
    OTEL_PYTHON_TORCHDIST_CONFIG,
    OTEL_PYTHON_TORCHDIST_ENABLED,
    OTEL_PYTHON_TORCHDIST_TAPE_DIR,
)
from otel_torchdist.node.job.share import position
from tests.jobs.torchrun.recording import TWO_RANKS, WORKERS
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.tapes.recorded import read_tapes

pytest.importorskip("opentelemetry.configuration")


def written(folder: Path, section: str, receiver: OtlpReceiver | None = None) -> str:
    """Write a configuration with settings for a test, and an exporter if there is a receiver; return its path."""
    tapes = folder / "tapes"
    tapes.mkdir(0o700, exist_ok=True)
    text = f"""
file_format: "1.0"
instrumentation/development:
  python:
    torch_distributed:
      agent_linger: 0
      tape_dir: {tapes}
      tape_on_disk: true
      prometheus_port: 0
{section}
"""
    if receiver is not None:
        text += f"""
resource:
  attributes:
    - name: service.name
      value: of-the-file
tracer_provider:
  processors:
    - batch:
        exporter:
          otlp_grpc:
            endpoint: {receiver.endpoint}
"""
    path = folder / "config.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def run(python: WarmPython, folder: Path, environ: Mapping[str, str], *not_installed: str) -> Done:
    """Run a job of two ranks to its end. In its ranks, some packages are not installed."""
    environ = {OTEL_PYTHON_TORCHDIST_TAPE_DIR: "", **environ}  # all tests have it, and it would win
    command = [*TWO_RANKS, WORKERS / "names_modules.py", *not_installed]
    done = Torchrun(python, folder / "output", command, environ).end()
    assert done.code == 0, done.err
    return done


def loaded(done: Done) -> list[list[str]]:
    """Packages of OpenTelemetry that each rank has loaded."""
    # Two ranks may write into one line, and gloo of torch 2.8 writes `[Gloo]` there.
    return [json.loads(names) for names in re.findall(r'\[\]|\["[^\]]*"\]', done.out)]


@pytest.mark.parametrize("variable", [OTEL_CONFIG_FILE, OTEL_PYTHON_TORCHDIST_CONFIG])
def test_file_alone(variable: str, warm_python: WarmPython, tmp_path: Path) -> None:
    """One file switches on, sets the directory of the tapes, and has the agent export; ranks load no OpenTelemetry."""
    with OtlpReceiver() as receiver:
        done = run(warm_python, tmp_path, {variable: written(tmp_path, "", receiver)})
        spans = receiver.wait_for(lambda spans: sum(span.name == "all_reduce" for span in spans) >= 8)
    assert {span.resource["service.name"] for span in spans} == {"of-the-file"}
    assert loaded(done) == [[]] * 2
    assert "otel_torchdist" not in done.err
    assert [tape.identity.rank for tape in read_tapes(tmp_path / "tapes")] == [0, 1]


def test_exporters_alone(warm_python: WarmPython, tmp_path: Path) -> None:
    """With the variable as the switch, and a file that has only exporters, ranks do without PyYAML."""
    tapes = tmp_path / "tapes"
    tapes.mkdir(0o700)
    with OtlpReceiver() as receiver:
        (tmp_path / "otel.yaml").write_text(
            "file_format: '1.0'\n"
            "tracer_provider: {processors: [{simple: {exporter: {otlp_grpc: "
            f"{{endpoint: '{receiver.endpoint}'}}}}}}}}]}}"
        )
        environ = {
            OTEL_PYTHON_TORCHDIST_ENABLED: "true",
            OTEL_CONFIG_FILE: str(tmp_path / "otel.yaml"),
            OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
            "OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK": "true",
            "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
            "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
        }
        done = run(warm_python, tmp_path, environ, "yaml")
        receiver.wait_for(lambda spans: sum(span.name == "all_reduce" for span in spans) >= 8)
    assert loaded(done) == [[]] * 2
    assert "otel_torchdist" not in done.err


@pytest.mark.parametrize(
    ("section", "environ", "is_on"),
    [
        pytest.param("      enabled: false", {}, False, id="off"),
        pytest.param("      share: 0.5", {"SLURM_JOB_ID": "1"}, True, id="in the share"),
        pytest.param("      share: 0.5", {"SLURM_JOB_ID": "3"}, False, id="not in the share"),
        pytest.param(
            "      share: 0.5",
            {"SLURM_JOB_ID": "3", OTEL_PYTHON_TORCHDIST_ENABLED: "true"},
            True,
            id="on by the job",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "", {OTEL_PYTHON_TORCHDIST_ENABLED: "false"}, False, id="off by the job", marks=pytest.mark.thorough
        ),
        pytest.param("disabled: true", {}, False, id="disabled", marks=pytest.mark.thorough),
    ],
)
def test_node_file(section: str, environ: dict[str, str], is_on: bool, warm_python: WarmPython, tmp_path: Path) -> None:
    """The node's file switches all ranks of a job on or off, or a share of jobs; the job's environment overrides it."""
    assert position("SLURM_JOB_ID=1") < 0.5 < position("SLURM_JOB_ID=3")
    file = written(tmp_path, f"      reader: none\n{section}")
    done = run(warm_python, tmp_path, {OTEL_PYTHON_TORCHDIST_CONFIG: file, **environ})
    assert loaded(done) == [[]] * 2
    assert len(read_tapes(tmp_path / "tapes")) == 2 * is_on
    assert "otel_torchdist" not in done.err


@pytest.mark.thorough
@pytest.mark.parametrize(("job", "is_on"), [("1", True), ("3", False)])
def test_opentelemetrys_own_configurator(job: str, is_on: bool, tmp_path: Path) -> None:
    """If OpenTelemetry's own configurator reads the file, it passes our section on; a share holds for it, too."""
    spans = tmp_path / "spans.jsonl"
    text = Path(
        written(tmp_path, "      share: 0.5\n      hooks: builtins:repr\n      stall_timeout: 5000")
    ).read_text()
    text += f"tracer_provider: {{processors: [{{simple: {{exporter: {{torchdist_otlp_json: {{path: {spans}}}}}}}}}]}}"
    (tmp_path / "config.yaml").write_text(text)
    environ = {OTEL_CONFIG_FILE: str(tmp_path / "config.yaml"), "SLURM_JOB_ID": job, OTEL_PYTHON_TORCHDIST_TAPE_DIR: ""}
    environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    script = (
        "from opentelemetry.sdk._configuration import _OTelSDKConfigurator as Configurator; Configurator().configure();"
    )
    script += "import torch, torch.distributed as dist; dist.init_process_group('gloo'); dist.all_reduce(torch.ones(1))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | environ, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert "otel" not in done.stderr, done.stderr
    assert spans.read_text().count('"name":"all_reduce"') == is_on
    assert len(read_tapes(tmp_path / "tapes")) == is_on
