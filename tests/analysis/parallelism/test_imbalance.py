"""The imbalance of exchanges between members of a group, and the traffic between ranks."""

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
        """Record an exchange: `sent` has the bytes from each rank to each rank, and `without` stays away."""
        self._sequence += 1
        for rank, tape in enumerate(self.tapes):
            parts, received = sent[rank], sum(sizes[rank] for sizes in sent)
            record: dict[str, Any] = {"sequence": self._sequence, "message_bytes": sum(parts), "at": self._sequence}
            if rank != without:
                if len({*parts}) > 1 or received != sum(parts):
                    record |= {"parts": parts, "received": received}
                tape.begin("all_to_all_single", GROUP, **record)

    def histories(self) -> list[RankHistory]:
        """Return the recorded histories."""
        return [history_of(TapeReader.of_writer(tape.writer)) for tape in self.tapes]

    def imbalance(self) -> Imbalance | None:
        """Return the imbalance of the recorded exchanges."""
        return calls_of(self.histories()).groups[GROUP.ranks].exchanges.imbalance(GROUP.ranks)


@pytest.fixture
def experts(memory: Path) -> Iterator[Experts]:
    """Four ranks without exchanges."""
    ranks = Experts(memory)
    yield ranks
    for tape in ranks.tapes:
        tape.writer.close()


def test_there_and_back(experts: Experts) -> None:
    """The expert with the most tokens is the busiest both ways, though all ranks receive equally on the way back."""
    dispatch = [[50, 200, 100, 50]] * 4
    combine = [[part] * 4 for part in dispatch[0]]
    for _ in range(3):
        experts.exchange(dispatch)
        experts.exchange(combine)
    assert experts.imbalance() == Imbalance(GROUP.ranks, rank=1, ratio=2.0, exchanges=6, typical_ratio=2.0)


def test_in_turns(experts: Experts) -> None:
    """If experts take turns at being the busiest, totals are balanced, but each exchange is not."""
    for nth in range(8):
        experts.exchange([[250 if rank == nth % 4 else 50 for rank in range(4)]] * 4)
    found = experts.imbalance()
    assert found is not None
    assert (found.ratio, found.exchanges, found.typical_ratio) == (1.0, 8, 2.5)


def test_even(experts: Experts) -> None:
    """Equal parts are balanced, and need no split record."""
    experts.exchange([EVEN] * 4)
    assert experts.imbalance() == Imbalance(GROUP.ranks, 0, 1.0, 1, 1.0)
    assert [tape.writer.next_number() for tape in experts.tapes] == [2] * 4


def test_only_what_is_known_of_all(experts: Experts) -> None:
    """Exchanges without all ranks, or with lost splits, are not compared."""
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
    """Traffic has the bytes between each two ranks, without the bytes that a rank keeps."""
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
    """If the number of splits differs from the number of members, bytes are spread evenly."""
    tape = FakeTape(memory)
    tape.begin("all_to_all_single", GROUP, message_bytes=300, parts=[100, 50, 150], received=300)
    found = calls_of([history_of(TapeReader.of_writer(tape.writer))])
    assert found.sent == {(0, other): 75 for other in (1, 2, 3)}
    tape.writer.close()
