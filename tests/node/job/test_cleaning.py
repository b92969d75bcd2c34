"""Who removes leftovers: the agent; a rank without one; and any rank where the file system is nearly full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.node.job.room import TAPES_BETWEEN, Cleaning, RankCleaning
from tests.support.small_file_system import report_of
from tests.support.tapes.directories import key, leave_job, names_in

MB = 1 << 20
PLENTY = 1 << 40


def test_first_tape_and_every_sixteenth(memory: Path) -> None:
    """A program that initializes again and again leaves a tape each time; they are looked at once in sixteen times."""
    cleaning = Cleaning(0, PLENTY)
    for turn in range(2 * TAPES_BETWEEN + 1):
        leave_job(memory, turn, age_s=10)
        cleaning.tapes_added(memory)
        assert (names_in(memory) == set()) == (turn % TAPES_BETWEEN == 0)


def test_each_base_directory_has_its_first_tape(memory: Path) -> None:
    """Whoever reads jobs of several base directories cleans up all of them."""
    cleaning = Cleaning(0, PLENTY)
    for base in (memory / "one", memory / "other"):
        base.mkdir()
        leave_job(base, 1, age_s=10)
        cleaning.tapes_added(base, 4)
        assert names_in(base) == set()


def test_rank_with_an_agent(memory: Path) -> None:
    """It leaves everything to the agent, whatever there is, until it is told that there is none."""
    for number in range(20):
        leave_job(memory, number, age_s=10)
    cleaning = RankCleaning(2, PLENTY, has_agent=True)
    for _ in range(2 * TAPES_BETWEEN):
        cleaning.before_tape(memory)
    assert len(names_in(memory)) == 20
    cleaning.take_over(memory)
    assert names_in(memory) == {key(18), key(19)}
    cleaning.take_over(memory)
    leave_job(memory, 20, age_s=10)
    for _ in range(TAPES_BETWEEN):
        cleaning.before_tape(memory)
    assert names_in(memory) == {key(19), key(20)}


def test_rank_without_an_agent(memory: Path) -> None:
    """It cleans up with its first tape."""
    leave_job(memory, 1, age_s=10)
    RankCleaning(0, PLENTY, has_agent=False).before_tape(memory)
    assert names_in(memory) == set()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ranks take of 64 MB if their agent never cleans up; in a namespace of its own."""
    return report_of(Path(__file__).with_name("scarce_memory.py"), tmp_path_factory.mktemp("scarce"))


@pytest.mark.process
def test_agent_that_never_comes(report: dict[str, Any]) -> None:
    """Once less than an eighth is free, ranks clean up: every tape is created, and an eighth is never exceeded."""
    assert report["created"] == report["wanted"]
    assert report["least_free"] >= 4 * MB
    assert len(report["jobs"]) > 1


@pytest.mark.process
def test_full_of_other_data(report: dict[str, Any]) -> None:
    """Where the program's own data leaves hardly any space, tapes are small, and leftovers make room for more."""
    assert report["created_beside_data"] == report["wanted"]
