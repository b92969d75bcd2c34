"""Sizes and factors of nccl-tests, for every form of an operation that torch has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.analysis.statistics.traffic import bus_factor, described_bytes
from otel_torchdist.model.names import SignatureName
from tests.analysis.statistics.histories import MIB, MS, Ranks, only_row

FORMS = {
    "all_reduce": (1, 2 * 3 / 4),
    "all_reduce_coalesced": (1, 2 * 3 / 4),
    "all_gather": (4, 3 / 4),
    "all_gather_into_tensor": (4, 3 / 4),
    "all_gather_into_tensor_coalesced": (4, 3 / 4),
    "all_gather_coalesced": (4, 3 / 4),
    "reduce_scatter": (1, 3 / 4),
    "reduce_scatter_tensor": (1, 3 / 4),
    "reduce_scatter_tensor_coalesced": (1, 3 / 4),
    "all_to_all": (1, 3 / 4),
    "all_to_all_single": (1, 3 / 4),
    "broadcast": (1, 1),
    "reduce": (1, 1),
    "gather": (4, 3 / 4),
    "gather_into_tensor": (4, 3 / 4),
    "scatter": (1, 3 / 4),
}


@pytest.mark.parametrize("operation", FORMS)
def test_bandwidth_of_each_form(ranks_of: Callable[..., Ranks], operation: str) -> None:
    """With 1 MiB per rank in 2 ms on 4 ranks, bandwidth is nccl-tests' S / t times its factor.

    If only the root contributes, S is the size of the tensors, which all ranks record: here 16 bytes.
    """
    ranks = ranks_of(4)
    contributed = {"broadcast": 16, "scatter": 64}.get(operation, MIB)
    for rank in range(4):
        ranks.call(rank, 0, 2, operation, message_bytes=contributed, peer=0)
    row = only_row(statistics_of(ranks.histories()), operation)
    times, factor = FORMS[operation]
    assert row.bandwidth is not None
    assert row.bandwidth.algorithm_bytes_per_second == pytest.approx(times * contributed * 1e9 / (2 * MS))
    assert row.bandwidth.bus_bytes_per_second == pytest.approx(row.bandwidth.algorithm_bytes_per_second * factor)


def test_scatter_has_its_size_on_all_ranks(ranks_of: Callable[..., Ranks]) -> None:
    """A member's record describes its part, and the root's record the whole, which is n times as large."""
    ranks = ranks_of(4)
    for rank in range(4):
        ranks.call(rank, 0, 1, "scatter", message_bytes=64 if rank == 0 else 0, peer=0)
    row = only_row(statistics_of(ranks.histories()), "scatter")
    assert row.bandwidth is not None
    assert row.bandwidth.algorithm_bytes_per_second == pytest.approx(64 / 0.001)


def test_operations_without_bandwidth(ranks_of: Callable[..., Ranks]) -> None:
    """Barriers move no data, and nccl-tests does not define the bandwidth of unknown operations."""
    ranks = ranks_of(2)
    for rank in range(2):
        ranks.call(rank, 0, 1, "barrier", message_bytes=0)
        ranks.call(rank, 1, 2, "all_shuffle", message_bytes=0, sequence=2)
    found = statistics_of(ranks.histories())
    assert {row.operation: (row.size_class, row.bandwidth) for row in found.rows} == {
        "barrier": ("none", None),
        "all_shuffle": ("unknown", None),
    }
    assert bus_factor("all_reduce", 0) is None


@pytest.mark.parametrize(
    ("shapes", "dtypes", "tensors", "expected"),
    [
        (((4, 2), ()), ("float32",), 2, 36),
        (((8,), (8,)), ("bfloat16", "int64"), 2, 80),
        (((3,),), ("bool",), 1, 3),
        (((3,),), ("complex64",), 1, 24),
        (((3,),), ("float8_e4m3fn",), 1, 3),
        (((3,),), ("float32",), 9, None),
        ((), (), 0, None),
    ],
)
def test_bytes_of_a_signature(
    shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], tensors: int, expected: int | None
) -> None:
    """Bytes follow from shapes and types; they are unknown if the signature does not describe all tensors."""
    assert described_bytes(SignatureName("recv", "", shapes, dtypes, "cpu", tensors)) == expected
