"""The calls of some steps, read from tapes, sent, and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.agent.path_watch.steps import MAX_STEPS, StepRange, histories_in, operations_in, segments_of
from tests.agent.path_watch.written import write
from tests.support.tapes.written_world import WrittenWorld


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Tapes of four ranks with two layers and 600 steps each: more records than are read at first."""
    folder = tmp_path_factory.mktemp("steps")
    return write(WrittenWorld(ranks=4, steps=600, slow=3), folder, capacity=4_096)


@pytest.mark.parametrize(("first", "last"), [(588, 599), (590, 594), (20, 27)])
def test_the_wanted_steps_and_nothing_else(tapes: list[Path], first: int, last: int) -> None:
    """Each rank's calls of these steps arrive, with the end of the step before; old ones too, if the ring has them."""
    found = list(histories_in(segments_of(tapes, StepRange(first, last)), 4))
    assert [history.rank for history in found] == [0, 1, 2, 3]
    for history in found:
        assert {view.record.step for view in history.operations} == set(range(first, last + 1))
        assert len(history.operations) == 3 * (last - first + 1)
        assert [mark.step for mark in history.steps] == list(range(first - 1, last + 1))
        assert {view.group.label for view in history.operations if view.group} == {"mesh_tp", "mesh_dp"}


def test_counting_needs_no_decoding(tapes: list[Path]) -> None:
    """Heads say how many calls there are."""
    assert operations_in(segments_of(tapes, StepRange(590, 599))) == 4 * 30
    assert operations_in(b"") == 0


def test_tapes_that_cannot_be_read(tapes: list[Path], tmp_path: Path) -> None:
    """What is gone, or is no tape, is left out."""
    junk = tmp_path / "junk.tape"
    junk.write_bytes(b"\0" * 4_096)
    content = segments_of([tmp_path / "gone.tape", junk, tapes[2]], StepRange(590, 599))
    assert [history.rank for history in histories_in(content, 4)] == [2]


def test_damaged_answers(tapes: list[Path]) -> None:
    """What comes before the damage is used, and no more ranks than the agent has."""
    content = segments_of(tapes, StepRange(590, 599))
    assert [history.rank for history in histories_in(content[:-10], 4)] == [0, 1, 2]
    assert [history.rank for history in histories_in(content, 2)] == [0, 1]
    assert list(histories_in(b"no segment at all", 4)) == []


@pytest.mark.parametrize(
    "body", [b"", b"1", b"a b", b"1 2 3", b"-1 2", b"5 4", f"1 {MAX_STEPS + 1}".encode(), b"1 " + b"9" * 100]
)
def test_what_is_no_question(body: bytes) -> None:
    """Anything but two numbers in order, not too far apart, is refused."""
    assert StepRange.from_bytes(body) is None


def test_questions_come_back_as_they_were() -> None:
    """A question survives the way to another agent."""
    assert StepRange.from_bytes(StepRange(7, 22).to_bytes()) == StepRange(7, 22)
