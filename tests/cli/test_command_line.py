"""Output of `otel-torchdist` when there is nothing to run: versions, missing packages, invalid options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.asking import ask_as_people_do
from tests.cli.running import Running, environment, processes_of


def test_version(start: Callable[..., Running]) -> None:
    """`--version` prints the installed version."""
    running = start("--version")
    assert running.end() == 0
    assert running.out == f"otel-torchdist {version('otel-torchdist')}\n"


def test_no_colours_without_a_terminal(start: Callable[..., Running]) -> None:
    """Without a terminal neither help nor an error has colours, whatever the terminal's name."""
    for arguments in (["--help"], ["agent", "--keep", "soon"]):
        running = start(*arguments, environ={"TERM": "xterm-256color", "COLORTERM": "truecolor"})
        running.end()
        assert len(running.out + running.err) > 100
        assert "\x1b" not in running.out + running.err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("otel-torchdist ", {"agent", "demo", "diagnose", "watch"}), ("otel-torchdist agent --ru", {"--run-dir"})],
)
def test_completion(base: Path, typed: str, offered: set[str]) -> None:
    """The shell is offered the commands, and the options of each."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    answer = ask_as_people_do(base, _OTEL_TORCHDIST_COMPLETE="complete_bash", **words)
    assert set(answer.out.split()) == offered


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (["typer"], "otel-torchdist: typer is not installed: pip install 'otel-torchdist[cli]'\n"),
        (["rich"], "otel-torchdist: rich is not installed: pip install 'otel-torchdist[cli]'\n"),
        (["torch"], "otel-torchdist: the demo needs torch: pip install 'otel-torchdist[demo]'\n"),
        (
            ["torch", "sklearn"],
            "otel-torchdist: the demo needs torch and scikit-learn: pip install 'otel-torchdist[demo]'\n",
        ),
    ],
)
def test_missing_packages(base: Path, missing: list[str], sentence: str) -> None:
    """One sentence names what is missing and the extra that brings it."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({missing!r}))  # as if they were not installed
sys.argv = ["otel-torchdist", "demo"]
from otel_torchdist.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(base), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["demo", "--ranks", "1"], "--ranks"),
        (["demo", "--ranks", "0"], "--ranks"),
        (["demo", "--protocol", "carrier-pigeon"], "--protocol"),
        (["demo", "--fault", "sleepy"], "--fault"),
        (["demo", "--threshold", "5", "--block-seconds", "7"], "--block-seconds"),
        (["demo", "--output", "/proc/nowhere/spans.jsonl"], "--output"),
        (["agent", "--run-dir", "/nowhere"], "--run-dir"),
    ],
)
def test_bad_input(start: Callable[..., Running], base: Path, arguments: list[str], option: str) -> None:
    """An invalid option is named, and nothing is started."""
    running = start(*arguments)
    assert running.end() == 64
    assert f"Invalid value for '{option}'" in running.err or f"Invalid value for {option}" in running.err
    assert "Traceback" not in running.err
    assert processes_of(base) == []


def test_base_directory_that_is_refused(start: Callable[..., Running], base: Path, tmp_path: Path) -> None:
    """If the base directory is refused, the demo reports why and does not begin."""
    base.chmod(0o777)
    running = start("demo", "--output", tmp_path / "spans.jsonl")
    assert running.end() == 1
    assert running.err == f"otel-torchdist: {base}: refused for tapes: others may write to it (mode 0777)\n"
