"""Call sites and Works as the native library reads them from the interpreter's memory."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Job, Jobs
from tests.support.native.native_library import KERNELS
from tests.support.tapes.recorded import Recorded


@pytest.fixture(scope="module")
def recorded(jobs_of: dict[str, Jobs]) -> dict[str, Job]:
    """The same program, recorded by each kernel."""
    return {kernel: jobs.run("odd_callers") for kernel, jobs in jobs_of.items()}


def operations_of(job: Job) -> list[Recorded]:
    """Return the records of the time in which capture was installed."""
    [tape] = job.tapes
    assert (tape.lost, tape.status.records_dropped, tape.failure) == (0, 0, "")
    return tape.operations


def test_same_call_sites(recorded: dict[str, Job]) -> None:
    """Both kernels find the same line for every call, whatever frames lie between it and torch."""
    python, native = (operations_of(recorded[kernel]) for kernel in KERNELS)
    sites = [[(one.name, one.function, one.line) for one in operations] for operations in (python, native)]
    assert sites[0] == sites[1]
    functions = {function.rpartition(".")[2] for _, function, _ in sites[0]}
    assert {"generated", "awaited", "reduce", "__init__", "__del__", "__lt__", "managed", "<module>"} <= functions
    assert sum(one.how == "CALLBACK" for one in native) > 50, "otherwise Python has recorded both"


def test_code_that_goes(recorded: dict[str, Job]) -> None:
    """A code object at the address of a freed one is not confused with it, even if all code was forgotten meanwhile."""
    for job in recorded.values():
        lines = job.ranks[0].lines()[0]["lines"]
        assert [one.line for one in operations_of(job) if one.function == "<module>"] == lines


def test_odd_waits(recorded: dict[str, Job]) -> None:
    """A wait returns or raises as without recording, for Works of any layout and for other objects."""
    for job in recorded.values():
        watched, without_us = job.ranks[0].lines()
        assert watched["waits"] == without_us["waits"]
        assert watched["waits"].count("TypeError") == 13
