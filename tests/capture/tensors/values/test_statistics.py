"""Statistics and checksums of tensors are correct for all types and layouts, without false alarms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.capture.tensors.device_values import parameters_in, row_of_parameters
from otel_torchdist.capture.tensors.eligible import select_inputs
from otel_torchdist.capture.tensors.statistics import checksum_of, extremes_of, moments_of, sample_of
from otel_torchdist.tape.records.numerics import mix_checksum, sum_checksums

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4_999, 9_999])
def test_one_bad_value_is_found(dtype: torch.dtype, bad: float, place: int) -> None:
    """A single non-finite value is found, whatever its position and kind."""
    tensor = torch.ones(10_000, dtype=dtype)
    assert extremes_of([tensor]).is_finite
    tensor[place] = bad
    found = extremes_of([torch.ones(3, dtype=dtype), tensor])
    assert not found.is_finite
    assert math.isnan(found.smallest) is math.isnan(bad)


@pytest.mark.parametrize(
    ("dtype", "value", "count"),
    [(torch.float16, 60_000.0, 1_000), (torch.float32, 1e20, 10), (torch.bfloat16, 1e30, 10)],
)
def test_large_finite_values_are_no_alarm(dtype: torch.dtype, value: float, count: int) -> None:
    """Large finite values are finite, although their sum and norm overflow in their type."""
    tensor = torch.full((count,), value, dtype=dtype)
    found = extremes_of([tensor])
    assert found.is_finite
    assert found.largest == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 100, 300_000])
def test_moments(dtype: torch.dtype, size: int) -> None:
    """Mean, norm, and shares of zeros and subnormal numbers are those of two tensors together."""
    torch.manual_seed(size)
    tensors = [torch.randn(size).to(dtype), torch.zeros(size, dtype=dtype)]
    tiny = torch.finfo(dtype).tiny
    tensors[0][: size // 4] = tiny / 2
    both = torch.cat(tensors).double()
    found = moments_of(tensors)
    assert found.norm == pytest.approx(float(both.norm()), rel=0.01)
    assert found.mean == pytest.approx(float(both.mean()), abs=0.01)
    assert found.zero_share == pytest.approx(0.5, abs=0.02)
    assert found.subnormal_share == pytest.approx((size // 4) / (2 * size), abs=0.02)


def test_sample_is_spread() -> None:
    """The sample of a large tensor spans all of it; of a non-dense view, its first elements."""
    tensor = torch.arange(10_000_000, dtype=torch.float32)
    sample = sample_of(tensor)
    assert sample.numel() == 65_536
    assert (float(sample.min()), float(sample.max())) == (0.0, pytest.approx(9_999_999, rel=0.001))
    assert sample_of(tensor.view(2, -1).t()).numel() == 65_536


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated, and still in use
def test_what_is_not_described() -> None:
    """Types and layouts without extremes are left out without an exception."""
    others = [
        torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3).to(torch.float8_e8m0fnu), torch.empty(0), torch.ones(3, device="meta"),
        torch.eye(3).to_sparse(), torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    ]  # fmt: skip
    with torch.inference_mode():
        inference = torch.ones(3)
    pairs = torch.ones(3, dtype=torch.complex64)
    usual = [torch.ones(3), torch.ones(4, 4).t()[1:], inference, torch.ones((), dtype=torch.float16), pairs]
    assert [tensor.data_ptr() for tensor in select_inputs(others + usual).described] == [
        tensor.data_ptr() for tensor in usual
    ]
    assert extremes_of(select_inputs(usual).described).elements == 3 + 12 + 3 + 1 + 6


def test_nothing_is_recorded_for_autograd() -> None:
    """Tensors that require gradients are examined without a graph, and the random state is unchanged."""
    tensor = torch.ones(5, requires_grad=True)
    before = torch.get_rng_state()
    with torch.no_grad():
        assert extremes_of([tensor]).is_finite
        assert moments_of([tensor]).norm == pytest.approx(math.sqrt(5))
        checksum_of([tensor])
    assert torch.equal(before, torch.get_rng_state())
    assert tensor.grad is None


@given(st.integers(1, 3_000), st.sampled_from(DTYPES), st.data())
def test_any_flipped_bit_changes_the_checksum(size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    """Any flipped bit changes the checksum, in lanes and in the remaining bytes, also the sign of zero."""
    tensor = torch.arange(size).to(dtype)
    before = checksum_of([tensor])
    raw = tensor.view(torch.uint8)
    place, bit = data.draw(st.integers(0, raw.numel() - 1)), data.draw(st.integers(0, 7))
    raw[place] ^= 1 << bit
    assert checksum_of([tensor]) != before
    raw[place] ^= 1 << bit
    assert checksum_of([tensor]) == before


@pytest.mark.parametrize("size", [1, 63, 511, 512, 513, 4_096, 100_003])
def test_the_checksum_depends_on_the_values_only(size: int) -> None:
    """The checksum does not depend on address, alignment or contiguity."""
    values = torch.randn(size)
    shifted = torch.empty(size + 1)[1:].copy_(values)
    strided = torch.empty(size, 2)[:, 1].copy_(values)
    assert len({checksum_of([one]) for one in (values, shifted, strided, values.clone())}) == 1


@pytest.mark.parametrize("stride", [1, 2, 6, 77])
def test_elements_are_taken_as_they_lie_in_memory(stride: int) -> None:
    """Elements are read in memory order, as c10d sends them, whatever the strides of dimensions of size one."""
    values = torch.randn(6)
    turned = values.as_strided((2, 1, 3), (1, stride, 2))
    assert checksum_of([turned]) == checksum_of([values]) != checksum_of([turned.contiguous()])


def test_exchanged_parts_change_the_checksum() -> None:
    """Swapping two parts, or two tensors, changes the checksum."""
    first, second = torch.randn(8_192), torch.randn(8_192)
    assert checksum_of([first, second]) != checksum_of([second, first])
    assert checksum_of([torch.cat([first, second])]) != checksum_of([torch.cat([second, first])])
    assert checksum_of([torch.zeros(8)]) != checksum_of([torch.zeros(16)])


@pytest.mark.parametrize("count", [1, 2, 5, 64, 300])
def test_sums_of_parameters_on_devices(count: int) -> None:
    """The device's sums of any number of parameters equal the host's bit by bit."""
    torch.manual_seed(count)
    tensors = [torch.randn(1 + place % 90) for place in range(count)]
    salts = [torch.randint(0, 1 << 32, ()).item() for _ in tensors]
    row = row_of_parameters(tensors, [int(salt) for salt in salts])
    expected = sum_checksums(
        [mix_checksum(checksum_of([tensor]), int(salt)) for tensor, salt in zip(tensors, salts, strict=True)]
    )
    assert parameters_in(row.numpy().tobytes()) == expected
