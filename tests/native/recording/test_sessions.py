"""Several sessions in one process, one after the other."""

from __future__ import annotations

from pathlib import Path

from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of

SESSIONS = 12
OPERATIONS = 8


def test_plans_end_with_their_session(warm_python: WarmPython) -> None:
    """A session that gets the memory of one that has ended takes none of its plans, which would crash the process."""
    jobs = Jobs(warm_python, Path(__file__).parent / "workers", environ=environ_of("native"))
    try:
        tapes = jobs.run("sessions").tapes
    finally:
        jobs.clean_up()
    assert [len(tape.operations) for tape in tapes] == [OPERATIONS] * SESSIONS
    assert all(operation.has_ended for tape in tapes for operation in tape.operations)
