"""Options that a command refuses: each is named in a sentence, with the exit code of a usage error."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from tests.support.commands.asking import ask
from tests.support.commands.running import processes_of


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("demo --ranks 1", "Invalid value for '--ranks'"),
        ("demo --ranks 0", "Invalid value for '--ranks'"),
        ("demo --protocol carrier-pigeon", "Invalid value for '--protocol'"),
        ("demo --fault sleepy", "Invalid value for '--fault'"),
        ("demo --threshold 5 --block-seconds 7", "Invalid value for --block-seconds"),
        ("demo --output /proc/nowhere/spans.jsonl", "Invalid value for --output"),
        ("agent --run-dir /nowhere", "Invalid value for '--run-dir'"),
        ("diagnose --run-dir /nowhere", "Invalid value for '--run-dir'"),
        ("diagnose . --run-dir .", "exclude each other"),
        ("diagnose --nonsense", "--nonsense"),
        ("diagnose --threshold soon", "'--threshold'"),
        (
            "analyze --only calls --by colour",
            "'colour': a list of operation, group, size, site, rank, phase is expected",
        ),
        ("analyze --only calls --ranks 0-x", "'0-x': expected ranks such as 0-7,12"),
        ("analyze --only calls --sort age", "Invalid value for '--sort'"),
        ("analyze --only calls --json --csv", "cannot be combined with --csv"),
        ("analyze . --run-dir .", "a path and --run-dir exclude each other"),
        ("analyze --only stats", "Invalid value for '--only'"),
        ("analyze --csv", "applies only to --only calls"),
        ("analyze --only path --by rank", "applies only to --only calls"),
        ("analyze --ranks 3", "applies only to --only calls and --html"),
        ("analyze --only calls --steps 3", "applies only to --html"),
        ("analyze --html a --json", "applies only to text and JSON"),
        ("analyze --html a --only path", "applies only to text and JSON"),
        ("profile --seconds 61", "--seconds"),
        ("profile --rate 201", "--rate"),
        ("profile --format svg", "--format"),
        ("profile --rank -1", "--rank"),
        ("analyze --html out.html --steps 7-3", "expected a step or a range of steps, such as 100-110"),
        ("export", "name one output"),
        ("export --parquet a --flight-recorder b", "name one output"),
        ("export --perfetto a --flight-recorder b", "name one output"),
        ("export --parquet a --otlp", "name one output"),
        ("export --parquet a --last 60s", "applies only to --flight-recorder and --otlp"),
        ("export --perfetto a --last 3", "applies only to --flight-recorder and --otlp"),
        ("export --flight-recorder a --steps 3", "applies only to --perfetto"),
        ("export --perfetto a --dry-run", "applies only to --otlp"),
        ("export --otlp", "name dumps"),
        ("export --perfetto a --steps 9-3", "expected a step"),
        ("export --perfetto a --around 60", "expected a time"),
        ("export --flight-recorder a --last yesterday", "'yesterday': expected a number"),
        ("export --flight-recorder a --last 0", "'0': expected a number"),
        ("export --flight-recorder a --last -5s", "'-5s': expected a number"),
        ("export --flight-recorder a --ranks 0,x", "'x': expected ranks"),
        ("export --flight-recorder a --ranks 7-3", "'7-3': expected ranks"),
        ("export --otlp . --otlp-endpoint localhost:4317", "begins with neither"),
        ("export --otlp . --ranks 0-x", "expected ranks such as"),
        ("export --otlp . --last 0", "expected a number of calls"),
        (
            "export --otlp . --output spans.jsonl --otlp-endpoint http://localhost:4317",
            "cannot be combined with --otlp-endpoint",
        ),
    ],
)
def test_wrong_options(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str) -> None:
    """The mistake is named, nothing is started and nothing is written."""
    monkeypatch.chdir(tmp_path)
    command, *arguments = shlex.split(line)
    answer = ask(base, *arguments, command=command)
    assert (answer.code, answer.out) == (ExitCode.USAGE_ERROR, "")
    assert message in re.sub(r"[│\s]+", " ", answer.err)
    assert (processes_of(base), list(tmp_path.iterdir())) == ([], [])
