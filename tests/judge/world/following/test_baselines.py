"""Baselines of call sites: only repeated long waits extend the tolerance."""

from typing import Any

import msgspec
import pytest

from otel_torchdist.judge.world.following.baselines import MAX_ADDED_NS, MAX_ONCE_NS, Baselines
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.operations import Operation

SECOND = 1_000_000_000
NO_FLAGS = Flag(0)
OPERATION = Operation(
    number=1,
    kind=RecordKind.OPERATION,
    entered_ns=SECOND,
    step=0,
    sequence=7,
    message_bytes=4,
    group=1,
    signature=2,
    call_site=3,
    label=0,
    peer=-1,
    tag=0,
    thread=1,
    flags=NO_FLAGS,
)


def ended(took_s: float, how: How = How.WAIT, **changes: Any) -> Operation:
    """Build a completed operation of a given duration."""
    completed_ns = SECOND + round(took_s * SECOND)
    return msgspec.structs.replace(OPERATION, completed_ns=completed_ns, how=how, **changes)


def test_routine_of_a_minute_earns_its_tolerance() -> None:
    """If a barrier takes a minute each time, two minutes are tolerated."""
    baselines = Baselines()
    assert baselines.tolerance_ns(OPERATION) == 0
    baselines.ended(ended(60))
    assert baselines.tolerance_ns(OPERATION) == 60 * SECOND + MAX_ADDED_NS


def test_short_routine_is_multiplied() -> None:
    """A usual duration of three seconds gives a tolerance of fifteen."""
    baselines = Baselines()
    for _ in range(20):
        baselines.ended(ended(3))
    assert baselines.tolerance_ns(OPERATION) == 15 * SECOND


def test_one_long_one_among_many_counts_half_as_much_again_for_a_while() -> None:
    """A single long call counts only in the maximum of the last hundred operations."""
    baselines = Baselines()
    for _ in range(200):
        baselines.ended(ended(0.001))
    baselines.ended(ended(8))
    assert baselines.tolerance_ns(OPERATION) == 12 * SECOND
    for _ in range(100):
        baselines.ended(ended(0.001))
    assert baselines.tolerance_ns(OPERATION) == 0


def test_another_call_site_group_or_kind_of_end_earns_nothing() -> None:
    """A baseline applies only to its call site, group and exact ends."""
    baselines = Baselines()
    for other in (ended(60, call_site=9), ended(60, group=9), ended(60, How.POLL), ended(60, How.FAILED)):
        baselines.ended(other)
    assert baselines.tolerance_ns(OPERATION) == 0


def test_calls_from_native_code_are_distinguished_by_their_signature() -> None:
    """Calls of DDP's reducer have no call site: the signature distinguishes its buckets."""
    baselines = Baselines()
    baselines.ended(ended(10, call_site=0, signature=4))
    native = msgspec.structs.replace(OPERATION, call_site=0)
    assert baselines.tolerance_ns(msgspec.structs.replace(native, signature=4)) > 0
    assert baselines.tolerance_ns(native) == 0


def test_overlapped_time_is_not_waiting() -> None:
    """For a receive posted long before a thread waited for it, only the wait counts."""
    baselines = Baselines()
    posted = ended(60, flags=int(Flag.END_BY_WAIT), returned_ns=SECOND + 1, wait_entered_ns=60 * SECOND)
    baselines.ended(posted)
    assert baselines.tolerance_ns(msgspec.structs.replace(OPERATION, flags=Flag.END_BY_WAIT)) == 5 * SECOND


@pytest.mark.parametrize("took_s", [150, 300, 600, 1500])
def test_one_very_long_wait_earns_two_minutes(took_s: float) -> None:
    """A very long wait that occurred once, such as a first step, gives two minutes: backends give up after some."""
    baselines = Baselines()
    baselines.ended(ended(took_s))
    for _ in range(50):
        baselines.ended(ended(0.05))
    assert baselines.tolerance_ns(OPERATION) == MAX_ONCE_NS


@pytest.mark.parametrize("took_s", [150, 600, 1500])
def test_what_has_occurred_twice_counts_as_usual(took_s: float) -> None:
    """A wait of ten minutes that occurred twice may take one minute more."""
    baselines = Baselines()
    for _ in range(2):
        baselines.ended(ended(took_s))
        for _ in range(90):
            baselines.ended(ended(0.001))
    assert baselines.tolerance_ns(OPERATION) == took_s * SECOND + MAX_ADDED_NS


def test_one_very_long_wait_among_long_ones() -> None:
    """One exceptionally long call does not change the tolerance from the others."""
    baselines = Baselines()
    for took_s in (300, 300, 1500, 300):
        baselines.ended(ended(took_s))
    assert baselines.tolerance_ns(OPERATION) == 300 * SECOND + MAX_ADDED_NS


def test_long_waits_that_are_too_old_earn_nothing() -> None:
    """Long waits are forgotten after a thousand calls."""
    baselines = Baselines()
    baselines.ended(ended(60))
    for _ in range(1_001):
        baselines.ended(ended(0.001))
    assert baselines.tolerance_ns(OPERATION) == 0
