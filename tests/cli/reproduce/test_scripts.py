"""The matrix: each fault in real processes, the script for it under torchrun, and the same verdict on both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

import pytest

from tests.cli.reproduce.pairs import Fault, Pair, Pairs
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.memory import memory_directory

MOST_S: Final = 340.0
FAULTS: Final = (
    Fault("two", "absent", (1,), size=4),
    Fault("shape", "mismatched"),
    Fault("dtype", "mismatched"),
    Fault("root", "mismatched"),
    Fault("skipped", "mismatched"),
    Fault("left_out", "mismatched"),
    Fault("circular", "circular", (0, 1, 2)),
    Fault("recv", "unmatched", (1,)),
    Fault("rendezvous", "rendezvous"),
    Fault("new_group", "rendezvous"),
    Fault("stop", "frozen"),
    Fault("exchange", "absent", lines=85),
    Fault("kill", "dead"),
    Fault("exception", "dead"),
)


@pytest.fixture(scope="module")
def pairs(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Pair]]]:
    """Jobs and their scripts by fault."""
    with memory_directory() as base, Pairs(warm_python, base, tmp_path_factory.mktemp("pairs")).of(FAULTS) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_same_verdict(pairs: dict[str, Future[Pair]], fault: Fault) -> None:
    """Kind, ranks, operation and position are the same, and so is what ranks disagree about."""
    pair = pairs[fault.name].result(MOST_S)
    original, copy, script = pair.original, pair.copy, pair.script
    named = {rank for place in copy.ranks for rank in script.stand_for[place]}
    assert (copy.kind, named, copy.operation) == (original.kind, {*original.ranks}, original.operation)
    where = copy.operation_id if copy.mismatch is None else copy.mismatch.operation_id
    assert where.sequence == script.sequence
    if original.mismatch is not None and copy.mismatch is not None:
        assert copy.mismatch.field is original.mismatch.field
        assert [text for text, _ in copy.mismatch.parties] == [text for text, _ in original.mismatch.parties]
    assert len(copy.circle) == len(original.circle)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_script_is_short_and_needs_torch_only(pairs: dict[str, Future[Pair]], fault: Fault) -> None:
    """A script fits on a screen, and imports torch and the standard library."""
    pair = pairs[fault.name].result(MOST_S)
    imported = [
        alias.name for node in ast.walk(ast.parse(pair.source)) if isinstance(node, ast.Import) for alias in node.names
    ]
    assert {*imported} <= {"os", "signal", "time", "torch", "torch.distributed"}
    lines = pair.source.splitlines()
    assert len(lines) <= fault.lines
    assert max(map(len, lines)) <= 108  # 100, and two levels
    assert sum(not line.startswith("#") for line in lines) <= fault.lines - 27


@pytest.mark.parametrize("fault", ["kill", "exception"])
def test_ranks_die_in_the_same_way(pairs: dict[str, Future[Pair]], fault: str) -> None:
    """Rank 2 dies of the same exception, or by a signal without one, in the script as in the job."""
    pair = pairs[fault].result(MOST_S)
    (place,) = pair.script.named  # a rank that had not come yet when rank 2 died has none in the script
    failure = pair.copy.failures.get(place)
    assert failure == pair.original.failures.get(2)
    assert (failure == "ValueError") is (fault == "exception")


def test_killed_rank_as_torchrun_sees_it(pairs: dict[str, Future[Pair]]) -> None:
    """Rank 2 of the script is killed by the same signal; which of several failures came first, torchrun guesses."""
    pair = pairs["kill"].result(MOST_S)
    (place,) = pair.script.named
    table = pair.log.partition("ChildFailedError:")[2]
    assert re.search(rf"rank +: {place} .*\n +exitcode +: -9 ", table), table


def test_exchanges_have_the_splits_of_the_job(pairs: dict[str, Future[Pair]]) -> None:
    """Each rank sends and receives what it did in the job, in rows of the same length."""
    source = pairs["exchange"].result(MOST_S).source
    calls = {ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    for tensors, received, sent in (
        ("torch.ones((9, 2)), torch.ones((3, 2))", [0, 3, 6], [0, 1, 2]),
        ("torch.ones((12, 2)), torch.ones((12, 2))", [1, 4, 7], [3, 4, 5]),
        ("torch.ones((15, 2)), torch.ones((21, 2))", [2, 5, 8], [6, 7, 8]),
    ):
        call = f"dist.all_to_all_single({tensors}, output_split_sizes={received}, input_split_sizes={sent})"
        assert call in calls, source
