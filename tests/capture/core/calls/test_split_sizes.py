"""The split sizes of `all_to_all` are on the tape, in whichever form it is called."""

from __future__ import annotations

from typing import Any

import pytest

from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.operations import Splits
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.both_kernels import NATIVE_LATER

pytestmark = NATIVE_LATER


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """Three ranks; the first then runs alone in a world of a hundred."""
    return jobs.run("exchanges", 3)


def expected(line: dict[str, Any]) -> Splits | None:
    """The splits of a call, as the worker describes it."""
    if line["sent"] is None:
        return None
    largest = line.get("largest", max(line["sent"], default=0))
    return Splits(tuple(line["sent"]), largest, line["received"], tuple(line["expected"]), line["unit"])


def test_as_issued(job: Job) -> None:
    """Uneven calls have the parts that their callers passed, in bytes. Even calls have none. No record is lost."""
    for rank, done in enumerate(job.ranks):
        own = [tape for tape in job.tapes if tape.identity.rank == rank]
        operations = [one.raw for tape in own for one in tape.operations if one.name.startswith("all_to_all")]
        assert [one.splits for one in operations] == [expected(line) for line in done.lines()]
        assert all(bool(one.flags & Flag.UNEVEN) == (one.splits is not None) for one in operations)
        assert all(tape.lost == 0 for tape in own)


def test_gathered_lists(job: Job) -> None:
    """A gather into tensors of unequal sizes is marked as uneven."""
    for rank in range(3):
        own = [tape for tape in job.tapes if tape.identity.rank == rank]
        gathers = [one.raw for tape in own for one in tape.operations if one.name == "all_gather"]
        uneven = [False, False] if rank else [False] * 2 + [False] * 2 + [False, False, True, True, False, False]
        assert [bool(one.flags & Flag.UNEVEN) for one in gathers] == uneven
        assert {one.splits for one in gathers} == {None}


def test_received_is_what_others_send(job: Job) -> None:
    """The bytes that a rank expects from a member equal the bytes that the member sends to it."""
    tapes = {tape.identity.rank: tape for tape in reversed(job.tapes)}
    calls: dict[tuple[str, int], dict[int, Splits]] = {}
    for rank, tape in tapes.items():
        for one in tape.operations:
            if one.raw.splits is not None and len(one.group.ranks) == 3:
                calls.setdefault((one.group.key, one.raw.sequence), {})[rank] = one.raw.splits
    complete = [found for found in calls.values() if len(found) == 3]
    assert len(complete) > 50
    for found in complete:
        for rank, splits in found.items():
            sent = tuple(found[other].sent[rank] for other in sorted(found))
            assert (splits.received, splits.expected) == (sum(sent), sent)
