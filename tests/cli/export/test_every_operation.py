"""Exports of a job that calls everything and has no fault: every dump can be opened, and nothing is found in them."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.export.torchfrtrace import analyse, why_not
from tests.support.commands.asking import Answer, ask
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython

WORKER = Path(__file__).parent / "workers" / "every_operation.py"
RANKS = 4
SHORT_RING = 64
_ports = itertools.count(1)


@dataclass(frozen=True)
class Export:
    """An export of a job.

    Attributes:
        out: Its folder.
        answer: Output of the command.
    """

    out: Path
    answer: Answer


def export_job(python: WarmPython, base: Path, folder: Path, *arguments: str, capacity: int = 1024) -> Export:
    """Run the job to its end and export it."""
    for path in (base, folder):
        path.mkdir(mode=0o700)
    common = {
        **QUIET,
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(next(_ports)),
        "OTEL_PYTHON_TORCHDIST_READER": "none",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
        "OTEL_PYTHON_TORCHDIST_TAPE_RECORDS": str(capacity),
        "STORE": str(folder / "store"),
        "WORLD_SIZE": str(RANKS),
    }
    environs = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]
    for done in python.run(WORKER, environs, folder, arguments):
        assert done.code == 0, done.err
    return Export(folder / "dumps", ask(base, "--flight-recorder", folder / "dumps", command="export"))


@pytest.fixture(scope="module")
def exports(
    warm_python: WarmPython, module_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Export]]:
    """The job with everything on the tapes, with a receive from any rank, and with rings that hold only its end."""
    folder = tmp_path_factory.mktemp("jobs")
    yield {
        "whole": export_job(warm_python, module_base / "whole", folder / "whole"),
        "any": export_job(warm_python, module_base / "any", folder / "any", "any"),
        "short": export_job(warm_python, module_base / "short", folder / "short", "long", capacity=SHORT_RING),
    }


def entries(export: Export) -> list[int]:
    """How many entries each dump has."""
    paths = sorted(export.out.iterdir())
    return [len(pickle.loads(path.read_bytes())["entries"]) for path in paths]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_torchfrtrace_finds_nothing(exports: dict[str, Export], warm_python: WarmPython, tmp_path: Path) -> None:
    """It opens every dump and reports nothing: not a size, not a name, no rank that overwritten calls make missing."""
    for analysis in analyse(warm_python, tmp_path / "analyses", [one.out for one in exports.values()]):
        assert (analysis.opened, analysis.error, analysis.log) == (RANKS, "", "")


def test_own_diagnosis_finds_nothing(exports: dict[str, Export], module_base: Path) -> None:
    """`diagnose` finds every rank and no problem in the dumps."""
    for one in exports.values():
        document = ask(module_base, "--json", one.out).document
        assert (document["verdict"], document["warnings"]) == (None, [])
        assert document["coverage"] == {"reporting": [0, 1, 2, 3], "unknown": []}


def test_uneven_exchange(exports: dict[str, Export]) -> None:
    """What a rank receives in an uneven exchange is as large as it was: here the sum from 1 to the number of ranks."""
    for rank, path in enumerate(sorted(exports["whole"].out.iterdir())):
        found = [one for one in pickle.loads(path.read_bytes())["entries"] if "all_to_all" in one["profiling_name"]]
        sizes = [(one["input_sizes"], one["output_sizes"]) for one in found]
        assert ([[4 * (rank + 1)]], [[10]]) in [([list(a) for a in i], [list(b) for b in o]) for i, o in sizes]


def test_what_is_left_out(exports: dict[str, Export]) -> None:
    """Of a sound run nothing is. Receives from any rank are, and what may have met them; so are overwritten calls."""
    whole, from_any, short = exports.values()
    assert " left out " not in whole.answer.out
    assert "\n8 calls left out (recv 4, send 4): they are received from any rank, or " in from_any.answer.out
    assert entries(from_any) == [found - ring for found, ring in zip(entries(whole), (3, 0, 0, 3), strict=True)]
    assert " left out " in short.answer.out and " is overwritten or damaged\n" in short.answer.out
    assert all(0 < few < SHORT_RING for few in entries(short))
