"""A program that closes descriptors which it did not open gets none of our bytes in its own files."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.native.native_library import KERNELS

LOWEST = 512


@pytest.mark.parametrize("kernel", KERNELS)
def test_recording_goes_on(jobs_of: dict[str, Jobs], kernel: str) -> None:
    """Its files and their descriptors are untouched, later names are recorded, and the rank counts as alive."""
    job = jobs_of[kernel].run("closes_descriptors")
    (seen,) = job.ranks[0].lines()
    assert seen["files"] == [".fault", ".names", ".tape"]
    assert seen["numbers"][0] >= LOWEST
    assert len(seen["numbers"]) == len(seen["files"])
    assert seen["spoiled"] == []
    assert seen["warnings"] == []
    (tape,) = job.tapes
    calls = [(one.function, one.group.description, one.signature.shapes) for one in tape.operations]
    assert calls == [
        ("before", "default_pg", ((2,),)),
        ("after", "default_pg", ((3, 5),)),
        ("after", "later", ((7,),)),
    ]


@pytest.mark.parametrize("kernel", KERNELS)
def test_dictionary_that_is_gone(jobs_of: dict[str, Jobs], kernel: str) -> None:
    """Where the dictionary cannot be opened again, one warning says so, and calls are recorded without new names."""
    job = jobs_of[kernel].run("closes_descriptors", 1, "gone")
    (seen,) = job.ranks[0].lines()
    assert seen["spoiled"] == []
    assert len(seen["warnings"]) == 1
    assert "the program has closed the file of names of rank 0" in seen["warnings"][0]
    assert len(job.tapes[0].operations) == 3
