"""What an agent cannot write to a job's standard error it leaves for the launcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_torchdist.agent.notices import Notices
from otel_torchdist.judge.stall.events import VerdictGiven
from otel_torchdist.node.job.agent_notes import is_announced, take_notices
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.reading.test_attempt_ends import killed
from tests.support.tapes.fake_tape import FakeTape
from tests.support.waiting import until
from tests.support.worlds.detectors import Watching, stalled

NOBODY = 65534


def notices_of(directory: Path, event: VerdictGiven, owner: int = os.geteuid()) -> Notices:
    """Those of an agent that reads a user's tapes for the ranks of a world; these say nothing of their stderr."""
    made = [FakeTape(directory, view.rank, nonce=view.nonce) for view in event.world.ranks.values()]
    for path in (directory, *directory.iterdir()):
        os.chown(path, owner, -1)
    tapes = [TapeReader(path) for path in tapes_in(directory)]
    assert len(tapes) == len(made)
    return Notices(lambda: tapes)


def crash() -> VerdictGiven:
    """The verdict on a rank that was killed."""
    (found,) = [event for event in killed()[1] if isinstance(event, VerdictGiven)]
    return found


def test_launcher_takes_it(tmp_path: Path) -> None:
    """The agent has it announced once the launcher has taken it, and not before."""
    event = crash()
    notices = notices_of(tmp_path, event)
    assert not notices.announce(event, "rank 2 is dead")
    assert notices.is_announcing
    (text,) = take_notices(tmp_path)
    assert text.startswith(b"otel_torchdist: rank 2 is dead\notel_torchdist: details: otel-torchdist diagnose ")
    until(lambda: not notices.is_announcing)
    assert is_announced(tmp_path, event.incident.trace_id)
    assert take_notices(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_job_of_another_user(tmp_path: Path) -> None:
    """A service of root's leaves a crash to the user's launcher, as that user's file; a stall may be over by then."""
    event = crash()
    watching = Watching(stalled()[0])
    watching.until(20.0)
    notices = notices_of(tmp_path, event, NOBODY)
    assert not notices.announce(watching.verdicts[0][1], "rank 2 has not come")
    assert not notices.announce(event, "rank 2 is dead")
    (left,) = tmp_path.glob("notice-*")
    assert left.stat().st_uid == NOBODY
    assert left.read_bytes().startswith(b"otel_torchdist: rank 2 is dead\n")
    assert not notices.is_announcing
