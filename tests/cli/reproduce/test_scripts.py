"""The matrix: each fault in real processes, the script for it under torchrun, and the same verdict on both."""

from __future__ import annotations

import ast
from typing import Final

import pytest

from tests.cli.reproduce.pairs import Fault, Pair, Pairs
from tests.support.memory import memory_directory
from tests.support.warm_python import WarmPython

FAULTS: Final = (
    Fault("late", "absent"),
    Fault("two", "absent", (1,), size=4),
    Fault("operation", "mismatched"),
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
    Fault("kill", "dead"),
)


@pytest.fixture(scope="module")
def pairs(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair | BaseException]:
    """Jobs and their scripts by fault."""
    with memory_directory() as base:
        return Pairs(warm_python, base, tmp_path_factory.mktemp("pairs")).of(list(FAULTS))


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_same_verdict(pairs: dict[str, Pair | BaseException], fault: Fault) -> None:
    """Kind, ranks, operation and position are the same, and so is what ranks disagree about."""
    pair = pairs[fault.name]
    if isinstance(pair, BaseException):
        raise pair
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
def test_script_is_short_and_needs_torch_only(pairs: dict[str, Pair | BaseException], fault: Fault) -> None:
    """A script fits on a screen, and imports torch and the standard library."""
    pair = pairs[fault.name]
    assert isinstance(pair, Pair)
    imported = [
        alias.name for node in ast.walk(ast.parse(pair.source)) if isinstance(node, ast.Import) for alias in node.names
    ]
    assert {*imported} <= {"os", "signal", "time", "torch", "torch.distributed"}
    lines = pair.source.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    assert sum(not line.startswith("#") for line in lines) <= 24
