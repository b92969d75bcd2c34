"""Output of `otel-torchdist` when there is nothing to run: versions, missing packages, invalid options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from tests.support.commands.asking import ask, ask_as_people_do
from tests.support.commands.running import SCRIPT, environment
from tests.support.repository import REPOSITORY

COMMANDS: Final = {
    "demo": ("For a first look", [0, 3, 64, 69, 70, 73, 74, 129, 130, 141, 143]),
    "watch": ("While a job runs on this node", [0, 2, 64, 70, 141]),
    "diagnose": ("After a hang or a crash", [0, 1, 2, 64, 70, 130, 141]),
    "profile": ("To see where one rank of a live job spends its time", [0, 2, 64, 70, 74, 130, 141]),
    "analyze": ("To see where the time goes", [0, 2, 64, 70, 73, 74, 130, 141]),
    "export": ("For other tools", [0, 2, 64, 69, 70, 73, 74, 75, 130, 141]),
    "reproduce": ("To report a hang", [0, 2, 4, 64, 70, 73, 141]),
    "agent": ("Start an agent by hand", [0, 2, 64, 70]),
    "mcp": ("For assistants", [0, 64, 69, 70, 129, 130, 141, 143]),
    "build-native": ("Build the native library for the installed torch", [0, 5, 64, 69, 70, 74, 130]),
}
"""Commands in the order in which a new user needs them, with the beginning of their help and their exit codes."""


def test_version(base: Path) -> None:
    """`--version` prints the installed version."""
    answer = ask_as_people_do(base, "--version")
    assert (answer.code, answer.out) == (0, f"otel-torchdist {version('otel-torchdist')}\n")


def test_commands_in_the_order_of_use(base: Path) -> None:
    """`--help` lists the commands in the order in which a new user needs them, each with its occasion."""
    answer = ask_as_people_do(base, "--help")
    found = re.findall(r"^│ ([\w-]+) +([A-Z][\w ]+)[:,]", answer.out, re.MULTILINE)
    assert found == [(name, when) for name, (when, _) in COMMANDS.items()]


def test_only_the_command_in_use_is_imported(base: Path) -> None:
    """A command starts without importing the others, and a misspelled one still gets a suggestion."""
    code = """
import sys
sys.argv = ["otel-torchdist", "analyze", "--help"]
from otel_torchdist.cli import main
try:
    main()
finally:
    print([name for name in sys.modules if name.startswith("otel_torchdist.cli.") and name.endswith(".command")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(base), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "['otel_torchdist.cli.analyze.command']"
    answer = ask_as_people_do(base, "wach")
    assert answer.code == ExitCode.USAGE_ERROR
    assert "No such command 'wach'. Did you mean 'watch'?" in answer.err


def test_exit_codes_are_documented() -> None:
    """The table in docs/terminal.md has exactly the exit codes of the enum, and no two have the same number."""
    page = (REPOSITORY / "docs" / "terminal.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(str(code.value), code.meaning) for code in ExitCode]
    assert len(rows) == len(ExitCode.__members__)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_exit_codes(base: Path, command: str) -> None:
    """Each command's help ends with its exit codes and their meanings, one a line."""
    listed = ask(base, "--help", command=command).out.partition("Exit codes:")[2]
    assert list(map(int, re.findall(r"^ +• (\d+): [a-z]", listed, re.MULTILINE))) == COMMANDS[command][1]


@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["text", "json"])
def test_broken_pipe(base: Path, arguments: tuple[str, ...]) -> None:
    """The exit code after a broken pipe (`diagnose | head`) is not that of a finding."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [str(SCRIPT), "diagnose", "--list", *arguments]
    done = subprocess.run(command, env=environment(base), stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_no_colors_without_a_terminal(base: Path) -> None:
    """Without a terminal, neither help nor errors are colored, whatever TERM is."""
    for arguments in (["--help"], ["agent", "--keep", "soon"]):
        answer = ask_as_people_do(base, *arguments, TERM="xterm-256color", COLORTERM="truecolor")
        assert len(answer.out + answer.err) > 100
        assert "\x1b" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("typed", "offered"), [("otel-torchdist ", {*COMMANDS}), ("otel-torchdist agent --ru", {"--run-dir"})]
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
    """One sentence names the missing package and the extra that contains it."""
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
    assert (done.returncode, done.stdout, done.stderr) == (69, "", sentence)


def test_base_directory_that_is_refused(base: Path, tmp_path: Path) -> None:
    """If the base directory is refused, the demo reports why and does not begin."""
    base.chmod(0o777)
    answer = ask(base, "--output", tmp_path / "spans.jsonl", command="demo")
    assert answer.code == 73
    assert answer.err == f"otel-torchdist: {base}: refused for tapes: others may write to it (mode 0777)\n"
