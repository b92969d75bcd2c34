"""The matrix: each fault in real processes, the script for it under torchrun, and the same verdict on both."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.reproduce.pairs import Pair, pair_of
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.directories import memory_directory


def died_alike(pair: Pair) -> None:
    """Rank 2 dies of the same exception, or by a signal without one, in the script as in the job."""
    (place,) = pair.script.named  # a rank that had not reached the call when rank 2 died has no exception in the script
    assert pair.copy.failures.get(place) == pair.original.failures.get(2)


def of_the_exception(pair: Pair) -> None:
    """The exception is that of the worker."""
    assert pair.original.failures.get(2) == "ValueError"


def by_the_signal(pair: Pair) -> None:
    """Torchrun reports the same signal. It only guesses which failure came first."""
    assert pair.original.failures.get(2) is None
    (place,) = pair.script.named
    table = pair.log.partition("ChildFailedError:")[2]
    assert re.search(rf"rank +: {place} .*\n +exitcode +: -9 ", table), table


def with_the_splits_of_the_job(pair: Pair) -> None:
    """Each rank sends and receives the same splits as in the job."""
    calls = {ast.unparse(node) for node in ast.walk(ast.parse(pair.source)) if isinstance(node, ast.Call)}
    for tensors, received, sent in (
        ("torch.ones((9, 2)), torch.ones((3, 2))", [0, 3, 6], [0, 1, 2]),
        ("torch.ones((12, 2)), torch.ones((12, 2))", [1, 4, 7], [3, 4, 5]),
        ("torch.ones((15, 2)), torch.ones((21, 2))", [2, 5, 8], [6, 7, 8]),
    ):
        call = f"dist.all_to_all_single({tensors}, output_split_sizes={received}, input_split_sizes={sent})"
        assert call in calls, pair.source


@dataclass(frozen=True)
class Fault:
    """A fault of the matrix.

    Attributes:
        name: Its name in the worker.
        verdict: Kind of the verdict.
        ranks: The ranks that it names.
        size: Ranks of the job.
        lines: Lines that the script may have.
        checks: Further checks of the pair.
    """

    name: str
    verdict: str
    ranks: tuple[int, ...] = (2,)
    size: int = 3
    lines: int = 55
    checks: tuple[Callable[[Pair], None], ...] = ()


FAULTS = (
    Fault("shape", "mismatched"),
    Fault("exchange", "absent", lines=85, checks=(with_the_splits_of_the_job,)),
)
MORE_FAULTS = (
    Fault("two", "absent", (1,), size=4),
    Fault("dtype", "mismatched"),
    Fault("root", "mismatched"),
    Fault("skipped", "mismatched"),
    Fault("left_out", "mismatched"),
    Fault("circular", "circular", (0, 1, 2)),
    Fault("recv", "unmatched", (1,)),
    Fault("rendezvous", "rendezvous"),
    Fault("new_group", "rendezvous"),
    Fault("stop", "frozen"),
    Fault("kill", "dead", checks=(died_alike, by_the_signal)),
    Fault("exception", "dead", checks=(died_alike, of_the_exception)),
)


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(fault, id=fault.name) for fault in FAULTS),
        *(pytest.param(fault, id=fault.name, marks=pytest.mark.thorough) for fault in MORE_FAULTS),
    ],
)
def test_script(warm_python: WarmPython, tmp_path: Path, fault: Fault) -> None:
    """The verdict on a job and on its script are the same, and the script fits on a screen and needs torch only.

    Kind, ranks, operation and position are the same, and so is what ranks disagree about.
    """
    with memory_directory() as base:
        pair = pair_of(warm_python, base, tmp_path, fault.name, fault.verdict, fault.ranks, fault.size)
    original, copy, script = pair.original, pair.copy, pair.script
    named = {rank for place in copy.ranks for rank in script.stand_for[place]}
    assert (copy.kind, named, copy.operation) == (original.kind, {*original.ranks}, original.operation)
    where = copy.operation_id if copy.mismatch is None else copy.mismatch.operation_id
    assert where.sequence == script.sequence
    if original.mismatch is not None and copy.mismatch is not None:
        assert copy.mismatch.field is original.mismatch.field
        assert [text for text, _ in copy.mismatch.parties] == [text for text, _ in original.mismatch.parties]
    assert len(copy.circle) == len(original.circle)
    for check in fault.checks:
        check(pair)
    imported = [
        alias.name for node in ast.walk(ast.parse(pair.source)) if isinstance(node, ast.Import) for alias in node.names
    ]
    assert {*imported} <= {"os", "signal", "time", "torch", "torch.distributed"}
    lines = pair.source.splitlines()
    assert len(lines) <= fault.lines
    assert max(map(len, lines)) <= 108  # 100, and two levels
    assert sum(not line.startswith("#") for line in lines) <= fault.lines - 27
