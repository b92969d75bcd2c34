"""The page about the flight recorder: its commands work as they stand there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.export.test_every_operation import export_job
from tests.cli.export.torchfrtrace import analyze, why_not
from tests.support.commands.asking import ask
from tests.support.documented import commands_of, page
from tests.support.launch.warm_python import WarmPython

COMMANDS = commands_of(page("flight-recorder.md"))


def test_commands(warm_python: WarmPython, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page does what it is there for, one after the other in one folder."""
    export_job(warm_python, base / "tapes", tmp_path / "job")
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) >= 7
    for words in map(shlex.split, COMMANDS):
        if words[0] == "torchfrtrace":
            if why_not():
                continue
            [found] = analyze(warm_python, tmp_path / "analysis", [tmp_path / words[1]])
            assert (found.opened, found.error) == (4, "")
            continue
        assert words[0] == "otel-torchdist"
        answer = ask(base / "tapes", *words[2:], command=words[1])
        assert (answer.code, answer.err) == (0, ""), words
        assert "dumps" in answer.out, words
