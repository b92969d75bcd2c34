"""When no run is found, the commands list settings that keep jobs from being recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.cli.targets import reasons
from otel_torchdist.config import Config
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
    found = reasons(environ, Config.from_environment(environ))
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence


@pytest.mark.parametrize("command", [["diagnose"], ["watch", "--wait", "0.3"]])
def test_commands_report_it(command: list[str], tmp_path: Path) -> None:
    """Both commands list them under their message, with the same exit code."""
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
