"""Random calls of all operations, recorded by each kernel, and not recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from otel_torchdist.model.kinds import Flag
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.native_library import KERNELS
from tests.support.tapes.recorded import Recorded

SEEDS = (1, pytest.param(2, marks=pytest.mark.thorough))
CALLS = 60


@dataclass(frozen=True)
class Runs:
    """The results of the same calls without recording and with each kernel."""

    bare: Job
    recorded: dict[str, Job]


@pytest.fixture(scope="module", params=SEEDS)
def runs(request: pytest.FixtureRequest, jobs_of: dict[str, Jobs]) -> Runs:
    """Random calls from one seed."""
    arguments = str(request.param), str(CALLS)
    recorded = {kernel: jobs.run("random_calls", 1, "recorded", *arguments) for kernel, jobs in jobs_of.items()}
    return Runs(jobs_of["python"].run("random_calls", 1, "bare", *arguments), recorded)


def outcomes_of(job: Job) -> list[Any]:
    """Return the exceptions of the calls, by thread."""
    return job.ranks[0].line()["outcomes"]


def by_group(job: Job) -> dict[str, list[Recorded]]:
    """Return the records of each group, which belongs to one thread."""
    [tape] = job.tapes
    assert (tape.lost, tape.status.records_dropped, tape.failure) == (0, 0, "")
    found: dict[str, list[Recorded]] = {}
    for operation in tape.operations:
        found.setdefault(operation.group.description, []).append(operation)
    return found


def facts_of(group: str, operation: Recorded, is_unread: bool) -> tuple[object, ...]:
    """Return the fields on which both kernels must agree. Steps depend on other threads."""
    raw, signature = operation.raw, operation.signature
    return (
        *(operation.name, operation.group.ranks, operation.line, signature.shapes, signature.dtypes),
        *(raw.sequence, raw.peer, raw.tag, raw.message_bytes, raw.flags & ~Flag.REDUCE_OP_UNREAD, raw.phase),
        *(raw.splits, operation.label, operation.failure, raw.returned_ns is None),
        *(None if is_unread else signature.reduce_op, None if group != "default_pg" else raw.step),
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_same_exceptions(runs: Runs, kernel: str) -> None:
    """Every call raises the same exception as without recording."""
    bare, recorded = outcomes_of(runs.bare), outcomes_of(runs.recorded[kernel])
    assert [len(thread) for thread in bare] == [CALLS] * len(bare)
    for thread, expected in zip(recorded, bare, strict=True):
        assert thread == expected


def test_same_records(runs: Runs) -> None:
    """Both kernels record the same calls and facts in the same order. The native kernel knows at least as many ends."""
    python, native = (by_group(runs.recorded[kernel]) for kernel in KERNELS)
    assert python.keys() == native.keys()
    for group, expected in python.items():
        for wanted, found in zip(expected, native[group], strict=True):
            is_unread = Flag.REDUCE_OP_UNREAD in wanted.raw.flags | found.raw.flags
            assert facts_of(group, found, is_unread) == facts_of(group, wanted, is_unread)
            assert found.has_ended or not wanted.has_ended, (wanted, found)


def test_each_kernel_has_recorded(runs: Runs) -> None:
    """Each tape names its kernel and torch's version. Only the native kernel knows ends by callbacks, of most calls."""
    for kernel, job in runs.recorded.items():
        [tape] = job.tapes
        assert (tape.identity.kernel.name.lower(), tape.identity.torch) == (kernel, torch.__version__)
        ends = Counter(one.how for one in tape.operations)
        assert ends["CALLBACK"] > 50 if kernel == "native" else "CALLBACK" not in ends, ends
