"""How unevenly members of a group take part in exchanges, and where their bytes go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.analysis.parallelism.calls import calls_of
from otel_torchdist.analysis.parallelism.graph import graph_of
from otel_torchdist.analysis.parallelism.imbalance import MAX_COMPARED, Exchanges, Imbalance
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import GroupName
from otel_torchdist.sources.history.tapes import history_of
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.fake_tape import FakeTape

GROUP = GroupName("0", "experts", (0, 1, 2, 3), 0, "gloo", True)
EVEN = [100] * 4


class Experts:
    """Four ranks that exchange parts of the given sizes."""

    def __init__(self, memory: Path) -> None:
        self.tapes = [FakeTape(memory, rank, capacity=4096) for rank in GROUP.ranks]
        self._sequence = 0

    def exchange(self, sent: Sequence[Sequence[int]], without: int | None = None) -> None:
        """What each rank sends to each, and which rank does not come."""
        self._sequence += 1
        for rank, tape in enumerate(self.tapes):
            parts, received = sent[rank], sum(of[rank] for of in sent)
            record: dict[str, Any] = {"sequence": self._sequence, "message_bytes": sum(parts), "at": self._sequence}
            if rank != without:
                if len({*parts}) > 1 or received != sum(parts):
                    record |= {"parts": parts, "received": received}
                tape.begin("all_to_all_single", GROUP, **record)

    def histories(self) -> list[RankHistory]:
        """What has been recorded."""
        return [history_of(TapeReader.of_writer(tape.writer)) for tape in self.tapes]

    def imbalance(self) -> Imbalance | None:
        """How balanced it is."""
        return calls_of(self.histories()).groups[GROUP.ranks].exchanges.imbalance(GROUP.ranks)


@pytest.fixture
def experts(memory: Path) -> Iterator[Experts]:
    """Ranks that have exchanged nothing yet."""
    made = Experts(memory)
    yield made
    for tape in made.tapes:
        tape.writer.close()


def test_there_and_back(experts: Experts) -> None:
    """An expert that all send most to is the busiest on both ways, though on the way back all receive alike."""
    there = [[50, 200, 100, 50]] * 4
    back = [[part] * 4 for part in there[0]]
    for _ in range(3):
        experts.exchange(there)
        experts.exchange(back)
    assert experts.imbalance() == Imbalance(GROUP.ranks, rank=1, ratio=2.0, exchanges=6, typical_ratio=2.0)


def test_in_turns(experts: Experts) -> None:
    """If another expert is the busiest each time, none is on the whole, but each exchange has to wait for one."""
    for nth in range(8):
        experts.exchange([[250 if rank == nth % 4 else 50 for rank in range(4)]] * 4)
    found = experts.imbalance()
    assert found is not None
    assert (found.ratio, found.exchanges, found.typical_ratio) == (1.0, 8, 2.5)


def test_even(experts: Experts) -> None:
    """Equal parts are balanced, and take no record of their own."""
    experts.exchange([EVEN] * 4)
    assert experts.imbalance() == Imbalance(GROUP.ranks, 0, 1.0, 1, 1.0)
    assert [tape.writer.next_number() for tape in experts.tapes] == [2] * 4


def test_only_what_is_known_of_all(experts: Experts) -> None:
    """An exchange that a rank has not come to is not compared, nor one whose splits are lost."""
    experts.exchange([[0, 400, 0, 0]] * 4, without=3)
    assert experts.imbalance() is None
    for tape in experts.tapes:
        tape.begin("all_to_all_single", GROUP, sequence=2, message_bytes=400, flags=Flag.UNEVEN)
    assert experts.imbalance() is None
    experts.exchange([EVEN] * 4)  # the sequence is theirs again
    found = experts.imbalance()
    assert found is not None and found.exchanges == 1


def test_nothing_exchanged(experts: Experts) -> None:
    """Without bytes there is no balance; a group of one has none either."""
    experts.exchange([[0] * 4] * 4)
    assert experts.imbalance() is None
    assert Exchanges().imbalance((3,)) is None


def test_the_newest_of_many(experts: Experts) -> None:
    """Only the newest exchanges are kept."""
    for _ in range(10):
        experts.exchange([[0, 400, 0, 0]] * 4)
    for _ in range(MAX_COMPARED):
        experts.exchange([EVEN] * 4)
    found = experts.imbalance()
    assert found is not None
    assert (found.exchanges, found.ratio, found.typical_ratio) == (MAX_COMPARED, 1.0, 1.0)


def test_bytes_go_where_they_were_sent(experts: Experts) -> None:
    """Between each two ranks are the bytes that one sent to the other, and what a rank keeps is in no line."""
    sent = [[rank * 10 + other for other in range(4)] for rank in range(4)]
    for _ in range(2):
        experts.exchange(sent)
    found = graph_of(calls_of(experts.histories()))
    assert found.sent == {
        (rank, other): 2 * sent[rank][other] for rank in range(4) for other in range(4) if rank != other
    }
    [groups] = found.axes
    assert groups.sent_bytes == sum(found.sent.values())
    assert groups.imbalance is not None and groups.imbalance.exchanges == 2


def test_splits_that_do_not_fit(memory: Path) -> None:
    """Splits of another number of members than the group has are not attributed to anyone in particular."""
    tape = FakeTape(memory)
    tape.begin("all_to_all_single", GROUP, message_bytes=300, parts=[100, 50, 150], received=300)
    found = calls_of([history_of(TapeReader.of_writer(tape.writer))])
    assert found.sent == {(0, other): 75 for other in (1, 2, 3)}
    tape.writer.close()
