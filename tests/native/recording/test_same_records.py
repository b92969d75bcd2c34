"""The same program, recorded by both kernels."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from otel_torchdist.tape.layout import Flag
from tests.support.launch.jobs import Jobs
from tests.support.native.native_library import KERNELS
from tests.support.ranks.rank import SHOWS_REDUCE_OP
from tests.support.tapes.recorded import Recorded, RecordedTape

RANKS = 2
READ = ~(Flag.REDUCE_OP_UNREAD)


@pytest.fixture(scope="module")
def tapes(jobs_of: dict[str, Jobs]) -> dict[str, list[RecordedTape]]:
    """What each kernel has recorded, by rank."""
    return {kernel: jobs.run("repeated", RANKS).tapes for kernel, jobs in jobs_of.items()}


def facts_of(operation: Recorded) -> tuple[object, ...]:
    """All of a record that does not depend on the time or the kernel."""
    raw, signature = operation.raw, operation.signature
    reduce_op = signature.reduce_op if Flag.REDUCE_OP_UNREAD not in raw.flags else ""
    return (
        *(operation.name, operation.group.ranks, operation.line, signature.shapes, signature.dtypes, reduce_op),
        *(raw.step, raw.sequence, raw.peer, raw.tag, raw.message_bytes, raw.flags & READ, raw.phase, raw.splits),
        *(operation.failure, operation.has_ended, raw.returned_ns is None),
    )


@pytest.mark.parametrize("rank", range(RANKS))
def test_same_facts(tapes: dict[str, list[RecordedTape]], rank: int) -> None:
    """Every call is there once, in the same order, with the same facts."""
    python, native = (tapes[kernel][rank].operations for kernel in KERNELS)
    assert len(python) > 100
    for expected, found in zip(python, native, strict=True):
        expected_facts, facts = facts_of(expected), facts_of(found)
        if Flag.REDUCE_OP_UNREAD in expected.raw.flags:  # Python reads it sometimes
            facts = (*facts[:5], "", *facts[6:])
        assert facts == expected_facts


def test_tapes_name_what_recorded_them(tapes: dict[str, list[RecordedTape]]) -> None:
    """The tape of each rank has the kernel and the version of torch."""
    for kernel in KERNELS:
        found = {(tape.identity.kernel.name.lower(), tape.identity.torch) for tape in tapes[kernel]}
        assert found == {(kernel, torch.__version__)}


def test_what_repeats_is_recorded_natively(tapes: dict[str, list[RecordedTape]]) -> None:
    """All but the first calls at a line; not what stays in Python: messages, uneven exchanges, steps.

    Where Python cannot tell reduce ops apart, calls with only one of those at a line are.
    """
    least = 25 if SHOWS_REDUCE_OP else 22
    for tape in tapes["native"]:
        ends = Counter(operation.how for operation in tape.operations if operation.name == "all_reduce")
        assert ends["CALLBACK"] >= least, ends
        assert not [one.how for one in tape.operations if one.name in ("send", "recv") and one.how == "CALLBACK"]


def test_python_has_no_callbacks(tapes: dict[str, list[RecordedTape]]) -> None:
    """So the count above shows which kernel has recorded a call."""
    assert not [one for tape in tapes["python"] for one in tape.operations if one.how == "CALLBACK"]
