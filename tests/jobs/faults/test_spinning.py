"""A fault that takes a core, so that agent, ranks and receiver share the other one: it runs when no other test does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jobs.faults.faulty_job import FaultyJob
from tests.jobs.faults.outcome import observe
from tests.jobs.faults.rows import SPINNING


@pytest.mark.thorough
def test_gil_held_by_a_loop(start: Callable[..., FaultyJob]) -> None:
    """A rank that computes in native code without end and holds the GIL is named in time, with its line."""
    outcome = observe(SPINNING, start(SPINNING.name, environ=SPINNING.environ))
    assert outcome.problems == (), outcome.sentence
