"""Call paths and the outermost functions of threads are recorded once per line, by both kernels."""

from __future__ import annotations

import re
import sys
from pathlib import PurePath

import pytest

from otel_torchdist.model.names import MAX_FRAMES, CallSiteName
from otel_torchdist.tape.names.reader import MAIN_THREAD, NamesReader, shown_path
from tests.support.launch.jobs import Job, Jobs

SCRIPT = "called_from.py"
MANY = 40
"""How often the script walks."""
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


def sites_of(job: Job, operation: str) -> list[CallSiteName | None]:
    """The call site of each call."""
    return [site for site, _ in _resolved(job, operation)]


def lines_of(job: Job, operation: str) -> list[list[int]]:
    """The lines of the program that have led to each call, innermost first."""
    return [[frame.line for frame in frames] for _, frames in _resolved(job, operation)]


def _resolved(job: Job, operation: str) -> list[tuple[CallSiteName | None, tuple[CallSiteName, ...]]]:
    [tape] = [tape for tape in job.tapes if tape.identity.rank == 0]
    names = NamesReader(tape.path.with_suffix(".names"))
    ids = [one.raw.call_site for one in tape.operations if one.name == operation]
    return [(names.call_site(one), names.callers(one)) for one in ids]


def test_straight(job: Job) -> None:
    """A call path has the frames of the script, innermost first."""
    assert paths_of(job, "barrier") == [((f"{SCRIPT} straight", *MAIN), False)]


def test_several_callers(job: Job) -> None:
    """Calls of a helper have the path of their own caller, for any shapes."""
    found = paths_of(job, "all_reduce")
    assert found[:4] == [((f"{SCRIPT} reduce", *MAIN), False)] * 4
    first, *others = lines_of(job, "all_reduce")[:4]
    assert [first[0], *(other[0] for other in others)] == [first[0]] * 4
    assert {other[1] for other in others} == {others[0][1]}
    assert first[1] != others[0][1]


def test_too_many_callers(job: Job) -> None:
    """If the paths to a line never repeat, the line is known, with the first path."""
    lines, paths = lines_of(job, "reduce"), paths_of(job, "reduce")
    assert len(lines) == MANY
    assert {line[0] for line in lines} == {lines[0][0]}
    distinct = sum(not varies for _, varies in paths)
    assert distinct < MANY
    assert paths[distinct:] == [(paths[0][0], True)] * (MANY - distinct)


def test_line_of_the_program_behind_a_package(job: Job) -> None:
    """A call that a library makes is recorded at the program's line, with the library function that the line calls."""
    first, alone = [site for site in sites_of(job, "all_gather") if site is not None and site.function != "ddp"]
    assert (first.function, first.through) == ("library", "metrics._gather")
    assert PurePath(first.file).name == SCRIPT
    assert (alone.function, alone.through) == ("_gather", "")  # in a thread that runs nothing else


def test_line_that_a_package_calls(job: Job) -> None:
    """Library frames between the program's frames do not change the call site."""
    [site] = sites_of(job, "all_to_all_single")
    assert site is not None
    assert (site.function.rpartition(".")[2], site.through) == ("<lambda>", "")


def test_frames_of_libraries(job: Job) -> None:
    """Consecutive library frames become one entry with the libraries' names, innermost first."""
    [path, *_] = paths_of(job, "broadcast")
    inner = "Layer.forward" if sys.version_info >= (3, 11) else "forward"  # whose code has no `co_qualname`
    assert path == ((f"{SCRIPT} {inner}", "… torch, python …", f"{SCRIPT} folded", *MAIN), False)


def test_deep_stack(job: Job) -> None:
    """A deep path is cut after its innermost frames."""
    [(path, _)] = paths_of(job, "all_gather_into_tensor")
    assert path == (f"{SCRIPT} deep",) * (MAX_FRAMES + 1)


def test_backward(job: Job) -> None:
    """A call from C++ in a backward pass has the path of the call of `backward`."""
    assert paths_of(job, "all_reduce")[-1] == ((f"{SCRIPT} ddp", *MAIN), False)


def test_what_a_thread_runs(jobs: Jobs) -> None:
    """Short-lived threads are known by their outermost function, and the main thread as such."""
    job = jobs.run("called_by", 2)
    for tape in job.tapes:
        names = NamesReader(tape.path.with_suffix(".names"))
        names.refresh()
        calls = [one.raw for one in tape.operations if one.name == "all_reduce"]
        run = "Logger.run" if sys.version_info >= (3, 11) else "run"  # whose code has no `co_qualname`
        functions = ["save", "save", "save", "evaluate", "evaluate", run]
        others = [f"{function} (called_by.py)" for function in functions]
        assert [names.caller(one.caller) for one in calls] == [MAIN_THREAD, *others, MAIN_THREAD]
        assert len({one.thread for one in calls}) == 6
