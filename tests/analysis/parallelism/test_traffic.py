"""The traffic of a broadcast: tapes record bytes of the root only, profiler traces of all members."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.analysis.parallelism.calls import calls_of
from otel_torchdist.model.names import GroupName
from otel_torchdist.sources.history.tapes import history_of
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.fake_tape import FakeTape


@pytest.mark.parametrize("of_members", [0, 300])
@pytest.mark.parametrize(
    ("ranks", "root", "sent"),
    [
        ((0, 1), 0, [(0, 1)]),
        ((0, 1), 1, [(1, 0)]),
        ((1, 3, 5, 7), 5, [(5, 7), (7, 1), (1, 3)]),
    ],
)
def test_broadcast(
    memory: Path, ranks: tuple[int, ...], root: int, sent: list[tuple[int, int]], of_members: int
) -> None:
    """Every member but the root receives all bytes from the previous member."""
    group = GroupName("0", "default_pg", ranks, 0, "gloo", True)
    tapes = [FakeTape(memory, rank) for rank in ranks]
    for rank, tape in zip(ranks, tapes, strict=True):
        for sequence in (1, 2):
            size = 300 if rank == root else of_members
            tape.begin("broadcast", group, sequence=sequence, message_bytes=size, peer=root)
    found = calls_of([history_of(TapeReader.of_writer(tape.writer)) for tape in tapes])
    assert found.sent == dict.fromkeys(sent, 600)
    assert found.groups[ranks].sent == 600 * (len(ranks) - 1)
    for tape in tapes:
        tape.writer.close()
