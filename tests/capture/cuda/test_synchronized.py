"""Synchronised timing, for debugging: where a device is waited for, and where it must not be."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Job, Jobs
from tests.support.native.native_library import simulated_library


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """A rank on a simulated device."""
    return jobs.run("synchronized", 1, str(simulated_library()))


def test_where_devices_are_synchronised(job: Job) -> None:
    """Twice for each collective; never for messages, blocks of coalesced operations, graphs, and on the host."""
    counts = job.ranks[0].lines()[-1]["counts"]
    assert counts == {
        "computation_before": 2,
        "asynchronous": 2,
        "messages": 0,
        "on_host": 0,
        "in_graph": 0,
        "coalesced": 0,
    }


def test_what_it_measures(job: Job) -> None:
    """An operation's time begins when what was enqueued before it is over: it lasts 5 ms and not 405."""
    [tape] = job.tapes
    assert tape.identity.synchronized
    operation = tape.operations[0].raw
    assert operation.completed_ns is not None
    assert 4e6 < operation.completed_ns - operation.entered_ns < 300e6
