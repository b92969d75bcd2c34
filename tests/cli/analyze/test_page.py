"""The page about statistics: its commands work as they stand there, and it has what the code has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from otel_torchdist.analysis.statistics.traffic import bus_factor, described_bytes
from otel_torchdist.cli.analyze.rows import COLUMNS
from otel_torchdist.model.names import SignatureName
from tests.cli.gloo_jobs import GlooJobs
from tests.sources.flight.made_dumps import late_rank, write
from tests.support.commands.asking import ask_as_on_page
from tests.support.documented import commands_of, page

PAGE = page("statistics.md")
COMMANDS = commands_of(PAGE)


def test_commands_work(gloo: Callable[..., GlooJobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page prints or writes something and exits with 0."""
    job = gloo("is punctual")
    job.join()
    write(tmp_path / "dumps", late_rank())
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        answer = ask_as_on_page(job.base, command)
        assert (answer.code, answer.err) == (0, ""), command
        assert "all_reduce" in answer.out or "rank" in answer.out, command
        if "--json" in command:
            assert answer.document["schema"] == 2


def test_columns_of_csv() -> None:
    """The page lists the columns of CSV, in their order."""
    [listed] = re.findall(r"```\n(operation, .*?)```", PAGE, re.DOTALL)
    assert tuple(re.findall(r"\w+", listed)) == COLUMNS


def test_factors() -> None:
    """The factors of the page are those of the code, here for 8 ranks."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]* \| ([^|]+) \|$", PAGE, re.MULTILINE)
    values = {"2(n-1)/n": 2 * 7 / 8, "(n-1)/n": 7 / 8, "1": 1.0}
    found = {name: values[factor] for names, factor in rows for name in re.findall(r"\w+", names)}
    assert len(found) == 10
    assert {name: bus_factor(name, 8) for name in found} == found


def test_bytes_of_every_type() -> None:
    """The rule for names of types holds for all types that this torch has."""
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert len(types) > 20
    for one in types:
        name = str(one).removeprefix("torch.")
        assert described_bytes(SignatureName("recv", "", ((1,),), (name,), "cpu", 1)) == one.itemsize, name
