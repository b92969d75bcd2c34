"""Unreadable or partly readable tapes beside others: one message each, and the other ranks are served."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.agent.job import Job
from otel_torchdist.formats import TAPE
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.conftest import JOB
from tests.agent.own_agent import OwnAgent
from tests.support.ranks.job_ranks import Ranks

MEETINGS = 5


def copy_of(tape: Path, changes: Callable[[bytearray], None]) -> Path:
    """A new tape: another one's content with changes."""
    path = tape.with_name(f"{0xBAD:013x}{len(tapes_in(tape.parent)):03x}.tape")
    content = bytearray(tape.read_bytes())
    changes(content)
    path.write_bytes(content)
    return path


def truncated(content: bytearray) -> None:
    """Cut off the second half."""
    del content[len(content) // 2 :]


def corrupt(content: bytearray) -> None:
    """Flip a bit of the identity."""
    content[20] ^= 1


def of_another_version(content: bytearray) -> None:
    """Claim a future version."""
    content[8] = 99


def not_begun(content: bytearray) -> None:
    """Fill it with zeros."""
    content[:] = bytes(len(content))


def test_healthy_ones_are_served(begin: Callable[..., Ranks], base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Five bad tapes and a copy get one line each, with name and reason; two healthy ranks miss nothing.

    A third rank's tape is overwritten while it is read, which is one line more.
    """
    ranks = begin(3)
    by_rank = {rank_of(path): path for path in tapes_in(base / JOB)}
    good, spoiled_later = by_rank[0], by_rank[2]
    spoiled = {
        copy_of(good, truncated): "truncated or damaged",
        copy_of(good, corrupt): "damaged: the identity block",
        copy_of(good, of_another_version): TAPE.refusal(99),
        copy_of(good, not_begun): "not a tape",
        copy_of(good, lambda content: content.clear()): "truncated: 0 bytes",
        copy_of(good, lambda content: None): f"is ignored: it is a copy of {good.name}",
    }
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        ranks.meet(1)
        own.turn_until(lambda: own.shown("torchdist_operations_total") == {0: 1, 1: 1, 2: 1})
        assert own.shown("torchdist_up") == {0: 1, 1: 1, 2: 1}
        with spoiled_later.open("r+b") as file:
            file.seek(512)
            file.write(bytes(1024))
        own.turn_until(lambda: f"a tape can no longer be read: {spoiled_later}: damaged" in caplog.text)
        for sequence in range(2, MEETINGS + 1):
            for command in (f"enter {sequence}", "end"):
                for rank in (0, 1):
                    ranks.send(rank, command)
        own.turn_until(lambda: own.shown("torchdist_operations_total") == {0: MEETINGS, 1: MEETINGS})
        ranks.exit()
    for path, why in {**spoiled, spoiled_later: "damaged"}.items():
        [line] = [line for line in caplog.messages if str(path) in line]
        assert why in line
    assert [one for one in own.exported("all_reduce") if one[0] != 2] == [
        (rank, sequence) for rank in (0, 1) for sequence in range(1, MEETINGS + 1)
    ]


def rank_of(path: Path) -> int:
    """The rank that a tape belongs to."""
    with contextlib.closing(TapeReader(path)) as tape:
        return tape.identity.rank


def test_interrupted_while_writing(begin: Callable[..., Ranks], base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half a record at the end of a dead rank's tape is ignored; one that is followed by others counts as lost."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    ranks = begin(2)
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        ranks.meet(1)
        ranks.send(1, "half")  # as by a thread that died
        ranks.meet(2)
        own.turn_until(lambda: own.shown("torchdist_records_lost_total") == {0: 0, 1: 1})
        for rank in (0, 1):
            ranks.send(rank, "half")
            ranks.kill(rank)
        own.turn_until(lambda: own.shown("torchdist_up") == {0: 0, 1: 0})
    assert own.exported("all_reduce") == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert "WARNING" not in {record.levelname for record in caplog.records}
    assert "ranks 0-1 are dead" in caplog.text or "rank 1 is dead" in caplog.text


def test_job_of_another_version(begin: Callable[..., Ranks], base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that can read none of a job's tapes says so once, and releases the job to an agent of its ranks."""
    directory = base / JOB
    begin(2)
    for path in tapes_in(directory):
        with path.open("r+b") as file:
            file.seek(8)
            file.write(b"\x63")
    with contextlib.closing(OwnAgent(directory)) as own:
        own.turn_until(lambda: not own.agent.directories)
        assert directory in own.agent.given_up
        Job(directory).close()  # the lock is free
    [refused, left] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert refused.startswith(f"tapes cannot be read: {directory}/")
    assert refused.endswith(TAPE.refusal(99))
    assert left.startswith(f"{directory} is left to an agent of the ranks' version")
