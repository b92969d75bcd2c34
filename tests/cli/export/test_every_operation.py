"""Exports of a healthy job that calls every operation: every dump can be opened, and shows no problem."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.export.torchfrtrace import analyze, why_not
from tests.cli.gloo_jobs import GlooJobs
from tests.support.commands.asking import Answer, ask
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.tapes.directories import memory_directory

WORKER = Path(__file__).parent / "workers" / "every_operation.py"
RANKS = 4
SHORT_RING = 64


@dataclass(frozen=True)
class Export:
    """An export of a job.

    Attributes:
        out: Its folder.
        answer: Output of the command.
    """

    out: Path
    answer: Answer


def export_job(
    python: WarmPython, base: Path, folder: Path, deed: str = "whole", kernel: str = "python", capacity: int = 1024
) -> Export:
    """Run the job to its end and export it."""
    base.mkdir(mode=0o700)
    environ = {"OTEL_PYTHON_TORCHDIST_TAPE_RECORDS": str(capacity), **environ_of(kernel)}
    job = GlooJobs(python, base, folder, deed, ranks=RANKS, environ=environ, worker=WORKER)
    assert [(done.code, done.err) for done in job.join() if done.code] == []
    job.close()
    return Export(folder / "dumps", ask(base, "--flight-recorder", folder / "dumps", command="export"))


@pytest.fixture(scope="module")
def exports(
    kernel: str, warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Export]]:
    """Exports of the job: complete, with a receive from any rank, and with rings that hold only its end."""
    folder = tmp_path_factory.mktemp("jobs")
    with memory_directory() as base:
        yield {
            deed: export_job(warm_python, base / deed, folder / deed, deed, kernel, capacity)
            for deed, capacity in (("whole", 1024), ("any", 1024), ("long", SHORT_RING))
        }


def entries(export: Export) -> list[int]:
    """How many entries each dump has."""
    paths = sorted(export.out.iterdir())
    return [len(pickle.loads(path.read_bytes())["entries"]) for path in paths]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_torchfrtrace_finds_nothing(exports: dict[str, Export], warm_python: WarmPython, tmp_path: Path) -> None:
    """It opens every dump and reports no mismatch, and no missing rank because of overwritten calls."""
    for analysis in analyze(warm_python, tmp_path / "analyses", [one.out for one in exports.values()]):
        assert (analysis.opened, analysis.error, analysis.log) == (RANKS, "", "")


def test_own_diagnosis_finds_nothing(exports: dict[str, Export], module_base: Path) -> None:
    """`diagnose` finds every rank and no problem in the dumps."""
    for one in exports.values():
        document = ask(module_base, "--json", one.out).document
        assert (document["verdict"], document["warnings"]) == (None, [])
        assert document["coverage"] == {"reporting": [0, 1, 2, 3], "unknown": []}


def test_uneven_exchange(exports: dict[str, Export]) -> None:
    """The received size of an uneven exchange is right: here the sum from 1 to the number of ranks."""
    for rank, path in enumerate(sorted(exports["whole"].out.iterdir())):
        found = [one for one in pickle.loads(path.read_bytes())["entries"] if "all_to_all" in one["profiling_name"]]
        sizes = [(one["input_sizes"], one["output_sizes"]) for one in found]
        assert ([[4 * (rank + 1)]], [[10]]) in [([list(a) for a in i], [list(b) for b in o]) for i, o in sizes]


def test_what_is_left_out(exports: dict[str, Export]) -> None:
    """Receives from any rank, sends that may match them, and overwritten calls are left out; of other runs, nothing."""
    whole, from_any, short = exports.values()
    assert " left out " not in whole.answer.out
    assert "\n8 calls left out (recv 4, send 4): they are received from any rank, or " in from_any.answer.out
    assert entries(from_any) == [found - ring for found, ring in zip(entries(whole), (3, 0, 0, 3), strict=True)]
    assert " left out " in short.answer.out and "overwritten or damaged\n" in short.answer.out
    assert all(0 < few < SHORT_RING for few in entries(short))
