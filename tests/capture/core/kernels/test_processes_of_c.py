"""Programs that close our file descriptors, and C code that forks without Python's hooks."""

from __future__ import annotations

from otel_torchdist.capture.core.c10d.hot_path import OVERHEAD_SAMPLE
from otel_torchdist.model.kinds import Kernel
from tests.support.launch.jobs import Jobs

LOWEST = 512


def test_closed_descriptors(jobs: Jobs) -> None:
    """No byte of ours goes to the program's files, later names are recorded, and the rank counts as alive."""
    job = jobs.run("closes_descriptors")
    (seen,) = job.ranks[0].lines()
    assert seen["files"] == [".fault", ".names", ".tape"]
    assert seen["numbers"][0] >= LOWEST
    assert len(seen["numbers"]) == len(seen["files"])
    assert (seen["spoiled"], seen["warnings"]) == ([], [])
    (tape,) = job.tapes
    calls = [(one.function, one.group.description, one.signature.shapes) for one in tape.operations]
    assert calls == [
        ("before", "default_pg", ((2,),)),
        ("after", "default_pg", ((3, 5),)),
        ("after", "later", ((7,),)),
    ]


def test_dictionary_that_is_gone(jobs: Jobs) -> None:
    """If the name dictionary cannot be reopened, there is one warning, and calls are recorded without new names."""
    job = jobs.run("closes_descriptors", 1, "gone")
    (seen,) = job.ranks[0].lines()
    assert seen["spoiled"] == []
    (warning,) = seen["warnings"]
    assert "the program has closed the file of names of rank 0" in warning
    assert len(job.tapes[0].operations) == 3


def test_child_of_c(jobs: Jobs) -> None:
    """Calls of a child that C has forked are not on its parent's tape.

    The library sees the fork immediately. Python reads its process id on a sample of calls, so it sees the fork after a
    few calls.
    """
    job = jobs.run("forked_from_c")
    (seen,) = job.ranks[0].lines()
    assert (seen["code"], seen["names"]) == (0, 0)
    is_native = job.tapes[0].identity.kernel is Kernel.NATIVE
    assert seen["written"] <= (0 if is_native else OVERHEAD_SAMPLE)
