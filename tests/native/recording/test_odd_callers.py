"""Where calls come from, and what is waited for, as the library reads them from the memory of the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch.jobs import Job, Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.tapes.recorded import Recorded


@pytest.fixture(scope="module")
def recorded(warm_python: WarmPython) -> Iterator[dict[str, Job]]:
    """The same program, recorded by each kernel."""
    workers = Path(__file__).parent / "workers"
    jobs = {kernel: Jobs(warm_python, workers, environ=environ_of(kernel)) for kernel in KERNELS}
    yield {kernel: one.run("odd_callers") for kernel, one in jobs.items()}
    for one in jobs.values():
        one.clean_up()


def operations_of(job: Job) -> list[Recorded]:
    """What was recorded while capture was installed."""
    [tape] = job.tapes
    assert (tape.lost, tape.status.records_dropped, tape.failure) == (0, 0, "")
    return tape.operations


def test_same_call_sites(recorded: dict[str, Job]) -> None:
    """Both kernels find the same line for every call, whatever lies between it and torch."""
    python, native = (
        [(one.name, one.function, one.line) for one in operations_of(recorded[kernel])] for kernel in KERNELS
    )
    assert native == python
    functions = {function.rpartition(".")[2] for _, function, _ in native}
    assert {"generated", "awaited", "reduce", "__init__", "__del__", "__lt__", "managed", "<module>"} <= functions


def test_code_that_goes(recorded: dict[str, Job]) -> None:
    """Code at an address that other code had is not taken for that, also when all code is forgotten meanwhile."""
    for job in recorded.values():
        lines = job.ranks[0].lines()[0]["lines"]
        found = [one.line for one in operations_of(job) if one.function == "<module>"]
        assert found == lines


def test_odd_waits(recorded: dict[str, Job]) -> None:
    """A wait answers as without us, for Works of any layout and for what is no Work."""
    for job in recorded.values():
        watched, without_us = job.ranks[0].lines()
        assert watched["waits"] == without_us["waits"]
        assert watched["waits"].count("TypeError") == 13


def test_both_kernels_have_recorded(recorded: dict[str, Job]) -> None:
    """Otherwise they would not have been compared."""
    assert sum(one.how == "CALLBACK" for one in operations_of(recorded["native"])) > 50
    assert not [one for one in operations_of(recorded["python"]) if one.how == "CALLBACK"]
