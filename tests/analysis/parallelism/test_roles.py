"""Roles of groups in cases that the tests with real jobs do not cover."""

from __future__ import annotations

import pytest

from otel_torchdist.analysis.parallelism.calls import CallShape, GroupCalls, ShapeCount
from otel_torchdist.analysis.parallelism.roles import GroupContext, RingCounts, Role, is_misnamed, roles_of
from otel_torchdist.analysis.statistics.traffic import sent_bytes

SEND = CallShape("send", "", 2, False, False, None)
REDUCE = CallShape("all_reduce", "sum", 1, False, False, None)


def roles(*counts: tuple[CallShape, int, float], context: GroupContext | None = None) -> list[Role]:
    """Return the roles that calls show."""
    kinds = {kind: ShapeCount(calls, sent, {1024}) for kind, calls, sent in counts}
    return [evidence.role for evidence in roles_of(GroupCalls(shapes=kinds), context or GroupContext())]


@pytest.mark.parametrize(
    ("fewest", "most", "role"),
    [
        (100, 100, Role.ATTENTION_RING),
        (99, 100, Role.ATTENTION_RING),
        (50, 100, Role.PIPELINE),
        (75, 100, Role.PIPELINE),
        (94, 100, Role.RING),
        (7, 7, Role.RING),
    ],
)
def test_messages_around_a_ring(fewest: int, most: int, role: Role) -> None:
    """Even numbers are ring attention, fewer messages at the closing are an interleaved pipeline, few are unclear."""
    assert roles((SEND, most, 1.0), context=GroupContext(ring=RingCounts(fewest, most))) == [role]


def test_small_second_roles() -> None:
    """A few bytes are no second role, unless there are many calls of an exchange."""
    exchange = CallShape("all_to_all", "", 2, False, False, None)
    gather = CallShape("all_gather", "", 3, False, False, None)
    assert roles((REDUCE, 10, 1e9), (gather, 10, 1e6)) == [Role.DATA]
    assert roles((REDUCE, 10, 1e9), (exchange, 10, 1e6)) == [Role.DATA, Role.CONTEXT]
    assert roles((REDUCE, 100, 1e9), (exchange, 1, 1e6)) == [Role.DATA]


def test_calls_that_show_nothing() -> None:
    """Scalars, counters and barriers show no role."""
    scalar = CallShape("all_reduce", "sum", 0, False, True, None)
    counter = CallShape("all_reduce", "sum", 1, True, False, None)
    assert roles((scalar, 100, 1e3), (counter, 100, 1e6), (CallShape("barrier", "", 0, False, True, None), 5, 0)) == []


@pytest.mark.parametrize(
    ("name", "is_wrong"),
    [
        ("mesh_dp", False),
        ("DATA_PARALLEL_GROUP", False),
        ("mesh_tp", True),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", False),
        ("default_pg", False),
        ("group 7", False),
        ("pipeline", True),
    ],
)
def test_names(name: str, is_wrong: bool) -> None:
    """Only a name with one known word can be wrong."""
    found = roles_of(GroupCalls(shapes={REDUCE: ShapeCount(10, 1e9, {1024})}), GroupContext())
    assert is_misnamed(name, found) is is_wrong
    assert not is_misnamed(name, [])


@pytest.mark.parametrize(
    ("operation", "sent"),
    [
        ("all_reduce", 150.0),
        ("reduce_scatter_tensor", 75.0),
        ("all_gather_into_tensor", 300.0),
        ("all_to_all_single", 75.0),
        ("send", 100.0),
        ("recv", 0.0),
        ("barrier", 0.0),
    ],
)
def test_bytes_that_a_rank_sends(operation: str, sent: float) -> None:
    """A rank contributes 100 bytes in a group of four."""
    assert sent_bytes(operation, 100, 4) == sent
    assert sent_bytes(operation, 100, 1) == 0
