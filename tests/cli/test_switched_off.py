"""When no run is found, the commands list settings that keep jobs from being recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.config import Config
from otel_torchdist.node.job.share import position
from otel_torchdist.runs.obstacles import recording_obstacles
from tests.support.commands.asking import ask

ENABLED = {"OTEL_PYTHON_TORCHDIST_ENABLED": "true"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}, []),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, ["TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading"]),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "true"}, ["TORCH_DEVICE_BACKEND_AUTOLOAD=true keeps torch from loading"]),
        ({"OTEL_SDK_DISABLED": "true"}, ["OTEL_SDK_DISABLED=true"]),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "a, torch_distributed"}, ["contains `torch_distributed`"]),
        ({"OTEL_PYTHON_TORCHDIST_ENABLED": "1"}, ["OTEL_PYTHON_TORCHDIST_ENABLED=1 is not `true`"]),
        ({"OTEL_PYTHON_TORCHDIST_ENABLED": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, []),
    ],
)
def test_reasons(settings: dict[str, str], said: list[str]) -> None:
    """Each setting that switches jobs off is named; without our switch no run is expected."""
    environ = ENABLED | settings
    found = recording_obstacles(environ, Config.from_environment(environ))
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence


SHARE = "file_format: '1.0'\ninstrumentation/development: {{python: {{torch_distributed: {{{}}}}}}}\n"
"""A configuration file with settings."""


@pytest.mark.parametrize(
    ("section", "settings", "said"),
    [
        ("", {}, []),
        ("share: 0.1", {}, ["only the share of 10% of jobs that {file} sets is recorded; "]),
        (
            "share: 0.5",
            {"SLURM_JOB_ID": "3"},
            ["this job (SLURM_JOB_ID=3) is not in the share of 50% that {file} sets; "],
        ),
        ("share: 0.5", {"SLURM_JOB_ID": "1"}, []),
        ("share: 0.5", {"SLURM_JOB_ID": "3", **ENABLED}, []),
        (
            "",
            {"SLURM_JOB_ID": "3", "OTEL_PYTHON_TORCHDIST_SHARE": "0.5"},
            ["that OTEL_PYTHON_TORCHDIST_SHARE=0.5 sets"],
        ),
        ("enabled: false", {}, ["{file} switches recording off (`enabled` of `torch_distributed`)"]),
        ("enabled: false", ENABLED, []),
        ("share: [", {}, ["{file}: "]),
    ],
)
def test_reasons_in_files(section: str, settings: dict[str, str], said: list[str], tmp_path: Path) -> None:
    """A share, a switched-off file and a broken file are named with the file, unless the environment overrules it."""
    assert position("SLURM_JOB_ID=1") < 0.5 < position("SLURM_JOB_ID=3")
    file = tmp_path / "config.yaml"
    file.write_text(SHARE.format(section))
    file.chmod(0o644)
    environ = {"OTEL_PYTHON_TORCHDIST_CONFIG": str(file), **settings}
    found = recording_obstacles(environ, Config.from_environment(environ))
    assert len(found) == len(said), found
    for sentence, part in zip(found, said, strict=True):
        assert part.format(file=file) in sentence


@pytest.mark.parametrize("settings", [{}, ENABLED])
def test_kill_switch(settings: dict[str, str], tmp_path: Path) -> None:
    """The file that switches recording off on the node is named, however jobs are switched on."""
    off = tmp_path / "off"
    environ = {"OTEL_PYTHON_TORCHDIST_OFF_FILE": str(off), **settings}
    assert recording_obstacles(environ, Config.from_environment(environ)) == []
    off.touch()
    [reason] = recording_obstacles(environ, Config.from_environment(environ))
    assert reason == f"recording is switched off on this node while {off} exists"


@pytest.mark.parametrize("command", [["diagnose"], ["watch", "--wait", "0.3"]])
def test_commands_report_it(command: list[str], tmp_path: Path) -> None:
    """`watch` and `diagnose` list the settings under their message; the exit code is unchanged."""
    name, *options = command
    answer = ask(
        tmp_path / "none",
        *options,
        command=name,
        OTEL_PYTHON_TORCHDIST_ENABLED="true",
        OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK="true",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert answer.code == 2
    assert "\n  TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading otel_torchdist" in answer.err
