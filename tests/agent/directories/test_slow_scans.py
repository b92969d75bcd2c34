"""Directories that take long to list are given up, with one line, so that all others are read in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.node import NodeWatch, SlowScans
from otel_torchdist.node.job.tapes import LocalTapes, live_jobs
from tests.agent.conftest import JOB
from tests.support.ranks.job_ranks import Ranks

FULL_JOB = "job-00000000000000ff"


@pytest.fixture
def full(base: Path, begin: Callable[..., Ranks]) -> Iterator[Path]:
    """A job directory beside another one, with a live rank, that takes longer to list than is allowed here."""
    begin(1)
    directory = base / FULL_JOB
    ranks = Ranks(directory, 1)
    for number in range(12_000):
        (directory / f"{number}.txt").touch()
    yield directory
    ranks.close()


def test_directory_that_is_slow(full: Path, base: Path, reading: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """The slow directory is given up with one line after three polls, and tried again later; the other one is read."""
    times = [live_jobs(base).took_s for _ in range(5)]  # a single one may have waited for a core
    fast, slow = (min(took_s[path] for took_s in times) for path in (base / JOB, full))
    watch = NodeWatch(reading, base, 60.0, slow=SlowScans((fast * slow) ** 0.5))
    for _ in range(2):
        watch.search()
    assert set(reading.directories) == {base / JOB, full}
    for _ in range(3):
        watch.search()
    assert reading.directories == [base / JOB]
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"{full} is no longer read: scanning it takes ")
    assert full not in live_jobs(base, reading.given_up).took_s
    NodeWatch(reading, base, 60.0, retry_s=0.0).search()
    assert set(reading.directories) == {base / JOB, full}


def test_what_is_slow() -> None:
    """Three slow polls in a row, because anything may be slow after a suspend; a fast poll resets the count."""
    places, path = SlowScans(), Path("a")
    slow, fast = {path: 1.0}, {path: 0.01}
    found = [places.slow_in(took_s) for took_s in (slow, slow, fast, slow, slow, slow, {})]
    assert found == [{}, {}, {}, {}, {}, slow, {}]


def test_base_directory_of_a_slow_one() -> None:
    """Scans that a directory explains do not count against its base directory, which may be slow once after that."""
    places, base, path = SlowScans(), Path("a"), Path("a/b")
    both, alone = {path: 1.0, base: 1.1}, {base: 1.0}
    found = [places.slow_in(took_s) for took_s in (both, both, both, alone, alone, alone)]
    assert found == [{}, {}, {path: 1.0}, {}, {}, {base: 1.0}]


def test_directory_full_of_tapes(base: Path, begin: Callable[..., Ranks], caplog: pytest.LogCaptureFixture) -> None:
    """More files than the limit hide no other directory; files that are not tapes are not all opened in one call."""
    begin(1)
    full = base / "job-0000000000000000"
    full.mkdir()
    for number in range(1, 41):
        (full / f"{number:016x}.tape").touch()
    found = live_jobs(base, most=16)
    assert found.live == [base / JOB]
    assert {path: error.strerror for path, error in found.unchecked.items()} == {
        full: "it and the directories beside it hold more than 16 tapes"
    }
    tapes = LocalTapes(full, most_opened=4)
    counts: list[int] = []
    for _ in range(3):
        assert tapes.new(only_alive=False) == []
        counts.append(len(caplog.records))
    assert counts == [4, 8, 12]
