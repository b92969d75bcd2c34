"""Statistics of float8 tensors are exact for all values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.capture.tensors.eligible import select_inputs
from otel_torchdist.capture.tensors.statistics import (
    FLOAT8,
    extremes_of,
    extremes_of_float8,
    format_of,
    histogram_of,
    moments_of,
)
from otel_torchdist.model.numerics import LARGEST, NumberFormat
from tests.support.launch.jobs import Jobs

DTYPES = sorted(FLOAT8, key=str)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 255), min_size=1, max_size=40))
def test_extremes_are_exact(dtype: torch.dtype, codes: list[int]) -> None:
    """Extremes equal torch's after conversion to float32, for any values in any order; NaN if any value is NaN."""
    tensor = torch.tensor(codes, dtype=torch.uint8).view(dtype)
    smallest, largest = extremes_of_float8(tensor)
    known = tensor.float()
    if known.isnan().any():
        assert math.isnan(smallest) or math.isnan(largest)
        assert math.isnan(extremes_of([tensor]).largest)
    else:
        assert (smallest, largest) == (float(known.min()), float(known.max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_histogram(dtype: torch.dtype) -> None:
    """Means and shares are those of the values. Clipped values count as saturated."""
    torch.manual_seed(0)
    largest = torch.finfo(dtype).max
    values = torch.cat([torch.randn(1_000), torch.zeros(50), torch.full((30,), largest), torch.full((20,), -largest)])
    tensor = values.to(dtype)
    tensor[:40] = torch.finfo(dtype).tiny / 2
    found, known = histogram_of(tensor), tensor.float()
    assert found.mean == pytest.approx(float(known.mean()), rel=1e-4, abs=1e-3)
    assert found.mean_square == pytest.approx(float(known.double().square().mean()), rel=1e-6)
    assert (found.zeros, found.saturated) == (int((known == 0).sum()), 50)
    assert found.subnormals == int(((known != 0) & (known.abs() < torch.finfo(dtype).tiny)).sum())


def test_statistics_of_several() -> None:
    """Large, strided and mixed tensors have statistics; the saturated share only if all are float8."""
    large = torch.full((300_000,), 2.0).to(torch.float8_e4m3fn)
    strided = torch.full((4, 6), -448.0).to(torch.float8_e4m3fn).t()[1:]
    assert select_inputs([large, strided, torch.empty(0).to(torch.float8_e4m3fn)]).described == (large, strided)
    found = extremes_of([large, strided])
    assert (found.smallest, found.largest, found.elements, found.is_finite) == (-448.0, 2.0, 300_020, True)
    moments = moments_of([large, strided])
    assert moments.norm == pytest.approx(math.sqrt(300_000 * 4 + 20 * 448**2))
    assert moments.saturated_share == pytest.approx(20 / (65_536 + 20))
    assert moments_of([large, torch.ones(3)]).saturated_share is None
    assert format_of([large, strided]) is NumberFormat.FLOAT8_E4M3FN
    assert format_of([large, torch.ones(3)]) is format_of([torch.ones(3).double()]) is NumberFormat.UNKNOWN


def test_largest_numbers() -> None:
    """The largest numbers that readers know without torch equal torch's."""
    known = {one: torch.finfo(getattr(torch, one.name.lower())).max for one in NumberFormat if one}
    assert known == LARGEST


def test_float8_on_its_way(jobs: Jobs) -> None:
    """The record of a float8 message has range, headroom, and shares of zeros and saturation."""
    sender, _ = jobs.run("sends_float8", 2).tapes
    [sent] = [one.raw.numerics for one in sender.operations if one.raw.numerics is not None]
    assert (sent.smallest, sent.largest, sent.headroom) == (-448.0, 1.5, 0.0)
    assert sent.saturated_share == pytest.approx(0.25, abs=1e-4)
    assert sent.zero_share == pytest.approx(0.5, abs=1e-4)
    assert sent.is_finite
