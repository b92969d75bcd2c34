"""What led to a call: recorded once for each line, by both kernels."""

from __future__ import annotations

import re
import sys

import pytest

from otel_torchdist.tape.names.model import MAX_FRAMES
from otel_torchdist.tape.names.reader import NamesReader, shown_path
from tests.support.launch.jobs import Job, Jobs

SCRIPT = "called_from.py"
MODULE = f"{SCRIPT} <module>"
MAIN = (f"{SCRIPT} main", MODULE)


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """One member of a group of two, and the other one."""
    return jobs.run("called_from", 2)


def paths_of(job: Job, operation: str) -> list[tuple[tuple[str, ...], bool]]:
    """The path of each call, and whether it varies, with lines replaced by dots where they do not matter."""
    [tape] = [tape for tape in job.tapes if tape.identity.rank == 0]
    names = NamesReader(tape.path.with_suffix(".names"))
    names.refresh()
    found: list[tuple[tuple[str, ...], bool]] = []
    for one in tape.operations:
        path = names.call_path(one.raw.call_site)
        if one.name == operation and path is not None:
            texts = tuple(re.sub(r":\d+ ", " ", text) for text in shown_path(names, one.raw.call_site))
            end = texts.index(MODULE) + 1 if MODULE in texts else len(texts)
            found.append((texts[:end], path.varies))  # what has started the script is the tests' own
    return found


def test_straight(job: Job) -> None:
    """The frames of the script, innermost first."""
    assert paths_of(job, "barrier") == [((f"{SCRIPT} straight", *MAIN), False)]


def test_several_callers(job: Job) -> None:
    """The path of the first call, marked as one of several."""
    found = paths_of(job, "all_reduce")
    assert found[:4] == [((f"{SCRIPT} reduce", *MAIN), True)] * 4


def test_frames_of_libraries(job: Job) -> None:
    """A run of them is one entry that names the libraries, from the inside out."""
    [path, *_] = paths_of(job, "broadcast")
    inner = "Layer.forward" if sys.version_info >= (3, 11) else "forward"  # whose code has no `co_qualname`
    assert path == ((f"{SCRIPT} {inner}", "… torch, python …", f"{SCRIPT} folded", *MAIN), False)


def test_deep_stack(job: Job) -> None:
    """A path ends at its bound, with the innermost frames."""
    [(path, _)] = paths_of(job, "all_gather_into_tensor")
    assert path == (f"{SCRIPT} deep",) * (MAX_FRAMES + 1)


def test_backward(job: Job) -> None:
    """What C++ calls has the path of the call of `backward`."""
    assert paths_of(job, "all_reduce")[-1] == ((f"{SCRIPT} ddp", *MAIN), False)
