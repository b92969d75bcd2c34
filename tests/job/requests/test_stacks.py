"""Stacks beside a tape: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.job.requests.stacks import stacks_path, write_stacks
from otel_torchdist.job.requests.stacks_file import read_stacks
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.stacks import ThreadStack

STACKS = [
    ThreadStack(11, "MainThread", (CallSiteName("load", "/home/user/data.py", 7), CallSiteName("<module>", "é.py", 1))),
    ThreadStack(12, "", (), is_locked=True),
    ThreadStack(13, "", (), is_locked=False),
]


def test_round_trip(memory: Path) -> None:
    """Stacks are read back for the request that they answer and for earlier ones, not for later ones."""
    tape = memory / "0000000000000001.tape"
    assert read_stacks(tape, 1) is None
    write_stacks(tape, 2, STACKS)
    assert read_stacks(tape, 1) == read_stacks(tape, 2) == STACKS
    assert read_stacks(tape, 3) is None
    write_stacks(tape, 3, STACKS[1:])
    assert read_stacks(tape, 3) == STACKS[1:]
    assert [path.name for path in memory.iterdir()] == ["0000000000000001.stacks"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", '{"request": "x"}', '{"request": 9}', '{"request": 9, "threads": [{"thread": 1}]}']
)
def test_damaged(memory: Path, content: str) -> None:
    """A file with other content is not stacks."""
    tape = memory / "0000000000000001.tape"
    stacks_path(tape).write_text(content)
    assert read_stacks(tape, 1) is None


def test_cut(memory: Path) -> None:
    """No prefix of a file passes for the whole."""
    tape = memory / "0000000000000001.tape"
    write_stacks(tape, 1, STACKS)
    content = stacks_path(tape).read_bytes()
    for length in range(len(content)):
        stacks_path(tape).write_bytes(content[:length])
        assert read_stacks(tape, 1) is None
