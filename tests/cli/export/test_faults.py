"""Exports of jobs that hung and were killed: what PyTorch's tool and our own find in the dumps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.export.hung_jobs import HungJob, hang
from tests.cli.export.torchfrtrace import Analysis, analyze, why_not
from tests.support.commands.asking import Answer, ask
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.directories import memory_directory

MIN_S: Final = 0.1
"""The shortest threshold there is: gloo ends the ranks of "dtype" and "shape", which hardly wait before."""


@dataclass(frozen=True)
class Fault:
    """What is to be found in the dumps of a faulty job.

    Attributes:
        name: Of the fault in the worker.
        reported: A pattern for what `torchfrtrace` reports.
        missing: The ranks that it takes for missing, a text for each operation.
        culprit: The rank that it says has called something else, if any; what comes after that is another matter.
        ranks: How many ranks the job has.
        dies: Whether a rank dies. Dumps do not record that, nor that the operations of others then failed.
    """

    name: str
    reported: str
    missing: tuple[str, ...] = ()
    culprit: str = ""
    ranks: int = 3
    dies: bool = False


FAULTS = (
    Fault("late", r"Not all ranks joining collective, sequence number: 4\n", missing=("2",)),
    Fault("operation", r"'all_reduce' does not match found collective type: 'barrier'", culprit="2"),
)
MORE_FAULTS = (
    Fault("shape", r"'\[\[4\]\]' does not match found input sizes: '\[\[1000\]\]'", culprit="2"),
    Fault("dtype", r"COLLECTIVE_DTYPE_MISMATCH, Expected dtypes: '{'Float'}'", culprit="2"),
    Fault("skipped", r"'broadcast' does not match found collective type: 'all_reduce'", culprit="2"),
    Fault("circular", r"group info: \d+:pair_0\n", missing=("0", "1", "2")),
    Fault("recv", r"group info: 0 p2p 1->2:default_pg\ncollective: gloo:recv 1<-0\n", missing=("1", "2")),
    Fault("two", r"group info: \d+:first\n", missing=("1", "3"), ranks=4),
    Fault("kill", r"sequence number: 4\n", missing=("2",), dies=True),
    Fault("exception", r"sequence number: 4\n", missing=("2",), dies=True),
)


@dataclass(frozen=True)
class Evidence:
    """A faulty job, and what was made of its tapes.

    Attributes:
        fault: Its fault.
        job: The job, killed.
        out: The folder with its dumps.
        answer: Output of the export.
        analysis: What `torchfrtrace` reports; None if it cannot be run.
    """

    fault: Fault
    job: HungJob
    out: Path
    answer: Answer
    analysis: Analysis | None


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("python", FAULTS), id="python"),
        pytest.param(("native", FAULTS), id="native"),
        pytest.param(("python", MORE_FAULTS), id="python-more", marks=pytest.mark.thorough),
        pytest.param(("native", MORE_FAULTS), id="native-more", marks=pytest.mark.thorough),
    ],
)
def evidence(
    request: pytest.FixtureRequest, warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Evidence]]:
    """All jobs of a kernel hang at the same time, were killed with SIGKILL, and were exported afterwards."""
    kernel, faults = request.param
    folder = tmp_path_factory.mktemp("hung")
    outs = [folder / one.name / "dumps" for one in faults]
    with memory_directory() as base:
        jobs = hang(warm_python, base, folder, [(one.name, one.ranks) for one in faults], kernel=kernel)
        answers = [
            ask(job.base, "--flight-recorder", out, command="export")
            for job, out in zip(jobs.values(), outs, strict=True)
        ]
        analyses = [None] * len(jobs) if why_not() else analyze(warm_python, folder / "analyses", outs)
        yield list(map(Evidence, faults, jobs.values(), outs, answers, analyses))


def test_every_rank_has_a_dump(evidence: list[Evidence]) -> None:
    """One file for each rank, named as torch names them, although the ranks were killed."""
    for one in evidence:
        ranks = one.fault.ranks
        assert (one.answer.code, one.answer.err) == (0, "")
        assert sorted(path.name for path in one.out.iterdir()) == [f"comm_lib_trace_rank_{n}" for n in range(ranks)]
        assert one.answer.out.splitlines()[0].startswith(f"{ranks} dumps with ")
        assert one.answer.out.splitlines()[-1] == f"open with: torchfrtrace {one.out}"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_torchfrtrace_finds_the_fault(evidence: list[Evidence]) -> None:
    """It opens every dump and names exactly the ranks that are missing, or that have called something else."""
    for one in evidence:
        fault, analysis = one.fault, one.analysis
        assert analysis is not None
        assert (analysis.error, analysis.opened) == ("", fault.ranks)
        log = analysis.log
        assert re.search(fault.reported, log), log
        assert set(re.findall(r"Culprit rank (\d+); Error type: (?!COLLECTIVE_STATE)", log)) == {*fault.culprit}, log
        if not fault.culprit:
            assert set(re.findall(r"missing ranks: \{([\d, ]+)\}", log)) == {*fault.missing}, log


def test_own_diagnosis_of_the_dumps(evidence: list[Evidence]) -> None:
    """`diagnose` says the same of the dumps as of the tapes from which they were made."""
    for one in evidence:
        on_tapes = one.job.verdict()
        on_dumps = ask(one.job.base, "--json", one.out, threshold_s=MIN_S).document["verdict"]
        assert on_tapes is not None
        if one.fault.dies:
            assert on_tapes["kind"] == "dead"
            assert on_dumps is None or (on_dumps["kind"], on_dumps["ranks"]) == ("absent", on_tapes["ranks"])
            continue
        assert on_dumps is not None
        assert (on_dumps["kind"], on_dumps["ranks"]) == (on_tapes["kind"], on_tapes["ranks"])
        assert _subject(on_dumps) == _subject(on_tapes)
        assert abs(on_dumps["age_s"] - on_tapes["age_s"]) < 2, (on_dumps, on_tapes)


def _subject(verdict: dict[str, Any]) -> dict[str, Any]:
    group = verdict["group"] or {}
    return {
        "operation": verdict["operation"],
        "sequence": verdict["sequence"],
        "group": (group.get("description"), group.get("ranks")),
        "field": (verdict["mismatch"] or {}).get("field"),
    }
