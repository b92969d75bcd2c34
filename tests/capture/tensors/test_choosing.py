"""Selection of sampled operations: the same on all ranks, and evenly spread over steps of any length."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from otel_torchdist.capture.tensors.eligible import makes_equal
from otel_torchdist.capture.tensors.numerics import has_values, is_chosen
from otel_torchdist.capture.tensors.replica_sets import ReplicatedTensors


@pytest.mark.parametrize("stride", [1, 3, 7, 16, 20, 64])
def test_every_position_of_a_step_is_sampled(stride: int) -> None:
    """One in 64 operations is sampled, also at each fixed position of steps of any length."""
    sequences = range(5, 64 * 2_000 * stride, stride)
    share = sum(is_chosen(sequence, 64, 100) for sequence in sequences) / len(sequences)
    assert 1 / 66 < share < 1 / 62


def test_large_messages_are_sampled_more_rarely() -> None:
    """Messages above a megabyte are sampled at the same rate of bytes. With an interval of one, all are sampled."""
    counts = {size: sum(is_chosen(one, 16, size << 20) for one in range(200_000)) for size in (0, 1, 8, 64)}
    assert counts[0] == counts[1] == pytest.approx(12_500, rel=0.02)
    assert counts[8] == pytest.approx(1_562, rel=0.05)
    assert counts[64] == pytest.approx(195, rel=0.1)
    assert all(is_chosen(one, 1, 0) for one in range(1_000))


@pytest.mark.parametrize(
    ("operation", "reduce_op", "expected"),
    [
        ("all_reduce", "sum", True),
        ("all_reduce", "avg", True),
        ("all_reduce", "min", False),
        ("all_reduce", "max", False),
        ("reduce_scatter_tensor", "sum", True),
        ("reduce_scatter_tensor_coalesced", "max", False),
        ("all_gather_into_tensor", "", True),
        ("broadcast", "", True),
        ("send", "", True),
        ("recv", "", False),
        ("scatter", "", False),
        ("barrier", "", False),
    ],
)
def test_what_should_be_finite(operation: str, reduce_op: str, expected: bool) -> None:
    """Inputs of sums, gathers and sends should be finite. Inputs of MIN and MAX often start with infinities."""
    assert has_values(operation, reduce_op) is expected


def test_reduce_op_that_is_not_shown() -> None:
    """A hidden reduce op (torch 2.8) may be MAX, except in backward passes."""
    assert not has_values("all_reduce", "", in_backward=False)
    assert has_values("all_reduce", "", in_backward=True)
    assert has_values("reduce_scatter_tensor", "", in_backward=True)
    assert not has_values("all_reduce", "max", in_backward=True)


def test_what_must_be_equal() -> None:
    """Outputs of reductions, broadcasts and gathers to all members must be equal."""
    names = ("all_reduce", "all_gather", "broadcast", "reduce_scatter_tensor", "gather", "reduce", "send", "all_to_all")
    assert [name for name in names if makes_equal(name, "gloo")] == ["all_reduce", "all_gather", "broadcast"]


def test_places_of_optimizers_are_bounded_and_become_free() -> None:
    """The number of followed optimizers is bounded.

    Further ones are counted, freed ones make room, none is kept alive.
    """
    followed = ReplicatedTensors(max_optimizers=2)
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(2))]) for _ in range(3)]
    alive = [weakref.ref(one) for one in optimizers]
    for nth in range(3):
        followed.learn(optimizers[nth])
    assert followed.left_out == 1
    del optimizers[0]
    gc.collect()
    followed.learn(optimizers[-1])
    assert followed.left_out == 0
    optimizers.clear()
    gc.collect()
    assert [one() for one in alive] == [None] * 3
