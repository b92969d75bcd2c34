"""`otel-torchdist analyze` on one screen, and its document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.analysis.result import AnalysisSection
from tests.cli.analyze.test_graph import DUMPS
from tests.support.commands.asking import Answer, analyze
from tests.support.tapes.directories import memory_directory
from tests.support.tapes.written_world import WrittenWorld

QUESTIONS = ["what it is", "where its time goes", "who holds it up", "what to do first"]
LATE = WrittenWorld(steps=12, slow=3, late_ms=5)


@pytest.fixture
def analyzed() -> Iterator[Callable[..., Answer]]:
    """Analyses a world."""
    with memory_directory() as base:

        def run(world: WrittenWorld, *options: str, only: str = "") -> Answer:
            world.write(base / "job-0", 256)
            return analyze(base, *options, base / "job-0", only=only)

        yield run


def answers_of(answer: Answer) -> dict[str, list[str]]:
    """Return the lines below each question."""
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, list[str]] = {}
    for line in answer.out.splitlines():
        if not line.startswith(" ") and line:
            found[line] = []
        elif line:
            found[[*found][-1]].append(line.strip())
    return found


def test_a_late_rank(analyzed: Callable[..., Answer]) -> None:
    """The late rank and its line are named with the gain, and neither those that wait for it nor those behind them."""
    answer = analyzed(LATE)
    found = answers_of(answer)
    assert [*found][1:-1] == QUESTIONS
    assert found["what it is"][0] == "8 ranks = TP 2 \N{MULTIPLICATION SIGN} DP 4"
    assert found["where its time goes"][0].startswith("10 steady steps, 2 to 11: 20.0 ms at the median; ")
    assert found["who holds it up"] == [
        "rank 3 computes 5.00 ms longer than its peers before all_reduce in mesh_tp (2-3) at forward (model.py:88); "
        "otherwise a step would be up to 5.00 ms (25%) shorter"
    ]
    assert found["what to do first"][0] == "slow rank (rank 3)"
    assert found["what to do first"][1].startswith("check: profile this rank and a peer before that line ")
    assert len(answer.out.splitlines()) <= 30


def test_a_rank_that_is_late_once(analyzed: Callable[..., Answer]) -> None:
    """A rank that is late in a single step is named with that step, although no steady step shows it."""
    found = answers_of(analyzed(WrittenWorld(steps=12, slow=3, late_ms=0, stall_step=7, stall_ms=8_000)))
    assert found["who holds it up"] == [
        "no rank stands out in the steady steps",
        "step 7 is left out of the steady steps because it took 8.02 s: 100% of that is rank 3, computing before "
        "all_reduce in mesh_tp (2-3) at forward (model.py:88)",
    ]


def test_missing_calls(base: Path) -> None:
    """Of a hang the ranks that have called less come first, and what judges them is named."""
    found = answers_of(analyze(base, DUMPS.with_name("gpu_error_1st")))
    assert found["where its time goes"] == ["not known: no call has an end that is known exactly"]
    assert found["who holds it up"][0].startswith("all_gather_into_tensor in EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP")
    assert found["what to do first"] == [
        "otel-torchdist diagnose judges open operations, and shows what each rank was doing last"
    ]


def test_open_operations(analyzed: Callable[..., Answer]) -> None:
    """What all members have entered and not left is one line, however many operations that are."""
    found = answers_of(analyzed(WrittenWorld(ranks=16, tensor=4, steps=12, slow=-1, leaves_open=True)))
    assert found["who holds it up"] == [
        "all_reduce (sequence 12, mesh_dp (0,4,8,12)): ranks 0,4,8,12 have not left it, and 3 more operations are open"
    ]


def test_document(analyzed: Callable[..., Answer]) -> None:
    """One document has all parts; with `--only` it has the same part, and null for the others."""
    whole = analyzed(LATE, "--json").document
    assert whole["schema"] == 2
    for section in AnalysisSection:
        part = analyzed(LATE, "--json", only=section.value).document
        assert part == {**whole, **{other.value: None for other in AnalysisSection if other is not section}}
