"""Random calls of all operations, recorded by both kernels and by none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.tape.layout import Flag
from tests.native.recording.test_same_records import facts_of
from tests.support.launch.jobs import Job, Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.tapes.recorded import Recorded

SEEDS = (1, 2)
CALLS = 60
STEP = 6
REDUCE_OP = 5
HAS_ENDED = -2
"""Places in what `facts_of` returns."""


@dataclass(frozen=True)
class Runs:
    """The same calls, without us and with each kernel."""

    bare: Job
    recorded: dict[str, Job]


@pytest.fixture(scope="module", params=SEEDS)
def runs(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Runs]:
    """Calls that follow from one seed."""
    seed = request.param
    jobs = {
        kernel: Jobs(warm_python, Path(__file__).parent / "workers", environ=environ_of(kernel)) for kernel in KERNELS
    }
    arguments = str(seed), str(CALLS)
    recorded = {kernel: jobs[kernel].run("random_calls", 1, "recorded", *arguments) for kernel in KERNELS}
    yield Runs(jobs["python"].run("random_calls", 1, "bare", *arguments), recorded)
    for one in jobs.values():
        one.clean_up()


def outcomes_of(job: Job) -> list[Any]:
    """What each call has raised, by thread."""
    return job.ranks[0].line()["outcomes"]


def by_group(job: Job) -> dict[str, list[Recorded]]:
    """What is on the tape, for each group, which belongs to one thread."""
    [tape] = job.tapes
    assert (tape.lost, tape.status.records_dropped, tape.failure) == (0, 0, "")
    found: dict[str, list[Recorded]] = {}
    for operation in tape.operations:
        found.setdefault(operation.group.description, []).append(operation)
    return found


def comparable(group: str, operation: Recorded, is_unread: bool) -> tuple[object, ...]:
    """What both kernels must agree on; the threads of other groups see steps begin at any time."""
    facts = list(facts_of(operation))
    if group != "default_pg":
        facts[STEP] = None
    if is_unread:
        facts[REDUCE_OP] = None
    return (*facts[:HAS_ENDED], *facts[HAS_ENDED + 1 :])


@pytest.mark.parametrize("kernel", KERNELS)
def test_same_exceptions(runs: Runs, kernel: str) -> None:
    """Every call raises what it raises without us, or nothing."""
    bare, recorded = outcomes_of(runs.bare), outcomes_of(runs.recorded[kernel])
    assert [len(thread) for thread in bare] == [CALLS] * len(bare)
    for thread, expected in zip(recorded, bare, strict=True):
        for found, wanted in zip(thread, expected, strict=True):
            assert found == wanted


def test_same_records(runs: Runs) -> None:
    """Each kernel records the same calls, with the same facts, in the same order."""
    python, native = (by_group(runs.recorded[kernel]) for kernel in KERNELS)
    assert python.keys() == native.keys()
    for group, expected in python.items():
        for wanted, found in zip(expected, native[group], strict=True):
            is_unread = Flag.REDUCE_OP_UNREAD in wanted.raw.flags
            assert comparable(group, found, is_unread) == comparable(group, wanted, is_unread)
            assert found.has_ended or not wanted.has_ended, (wanted, found)


def test_both_kernels_have_recorded(runs: Runs) -> None:
    """Otherwise they would not have been compared: only the native one knows ends by callbacks."""
    ends = Counter(one.how for tape in runs.recorded["native"].tapes for one in tape.operations)
    assert ends["CALLBACK"] > 50, ends
    assert not [one for tape in runs.recorded["python"].tapes for one in tape.operations if one.how == "CALLBACK"]
