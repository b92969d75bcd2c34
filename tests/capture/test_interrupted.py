"""Exceptions that come up inside our code and are the program's: all arrive, and no record stays open for them.

`python tests/capture/workers/interrupted.py signal 50000` makes a long run of it.
"""

from __future__ import annotations

import pytest

from tests.capture.conftest import Jobs

TIMES = 400


@pytest.mark.parametrize("way", ["signal", "thread"])
def test_raised_at_random_moments(jobs: Jobs, way: str) -> None:
    """Deadlines by signal handlers and from other threads, in collectives, waits and steps of an optimizer.

    The numbers on the tape stay those of gloo: an operation that was interrupted when it had been issued counts.
    """
    found = jobs.run("interrupted", 1, way, str(TIMES)).ranks[0].line()
    assert (found["raised"], found["caught"], found["lost"]) == (TIMES, TIMES, 0)
    assert (found["open"], found["followed"], found["seen_open"]) == (0, 0, 0)
    assert found["sequence"] == found["given_to_gloo"]
