"""What a thread runs that calls an operation: known for threads that are new each time, by both kernels."""

from __future__ import annotations

import sys

from otel_torchdist.tape.names.reader import MAIN_THREAD, NamesReader
from tests.support.launch.jobs import Jobs

SCRIPT = "(called_by.py)"


def test_callers(jobs: Jobs) -> None:
    """The main thread, and each other one by its outermost function, at a line that all of them share."""
    job = jobs.run("called_by", 2)
    for tape in job.tapes:
        names = NamesReader(tape.path.with_suffix(".names"))
        names.refresh()
        calls = [one.raw for one in tape.operations if one.name == "all_reduce"]
        run = "Logger.run" if sys.version_info >= (3, 11) else "run"  # whose code has no `co_qualname`
        functions = ["save", "save", "save", "evaluate", "evaluate", run]
        others = [f"{function} {SCRIPT}" for function in functions]
        assert [names.caller(one.caller) for one in calls] == [MAIN_THREAD, *others, MAIN_THREAD]
        assert len({one.thread for one in calls}) == 6
