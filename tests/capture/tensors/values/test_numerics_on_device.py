"""Numerics on a simulated device: computed without waiting for the device or holding tensors."""

from __future__ import annotations

from typing import Any

import pytest

from otel_torchdist.model.numerics import Unseen
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.native.native_library import simulated_library
from tests.support.ranks.rank import SHOWS_REDUCE_OP

pytestmark = [
    NATIVE_LATER,
    pytest.mark.skipif(not SHOWS_REDUCE_OP, reason="this torch does not show the reduce op to Python"),
]
SLOTS = 6


@pytest.fixture(scope="module")
def said(jobs: Jobs) -> list[dict[str, Any]]:
    """The report of a rank that runs all parts. A wait for the device raises."""
    job = jobs.run("numeric_on_device", 1, str(simulated_library()))
    assert "internal error" not in job.ranks[0].err
    return job.ranks[0].lines()


def of(said: list[dict[str, Any]], part: str) -> list[dict[str, Any]]:
    """Return the lines of one part."""
    return [line for line in said if line.get("part") == part]


def test_a_wait_for_the_device_raises(said: list[dict[str, Any]]) -> None:
    """Any wait for the device raises in these tests, so the other tests prove that our code never waits."""
    [line] = of(said, "waits")
    assert line["refused"] == ["item", "nonzero", "mask", "to_host", "from_host"]


def test_values_are_those_of_the_host(said: list[dict[str, Any]]) -> None:
    """Every statistic and checksum equals the host's, for each type, alignment, layout and size."""
    lines = of(said, "values")
    assert len(lines) == 16
    for line in lines:
        *found, checksum, output = line["found"]
        *expected, expected_checksum, _ = line["expected"]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
        assert checksum == output == expected_checksum


def test_results_come_in_the_order_of_the_stream(said: list[dict[str, Any]]) -> None:
    """Behind a running kernel nothing is known. Later a NaN is found that the program has long overwritten."""
    [line] = of(said, "in_order")
    assert line["early"] == line["still"] == [[True, None]]
    assert line["late"] is False
    assert not line["is_held"]


def test_room_is_bounded(said: list[dict[str, Any]]) -> None:
    """Without a free slot, inputs are marked as not examined, and are not called finite.

    Later, slots are free again.
    """
    [line] = of(said, "too_many")
    looked_at = SLOTS // 2  # one for the inputs and one for the outputs of each
    assert line["full"] == [[True, None]] * looked_at + [[None, Unseen.FULL]] * (2 * SLOTS - looked_at)
    assert line["later"] == [True, None]


def test_nothing_is_enqueued_into_a_graph(said: list[dict[str, Any]]) -> None:
    """Nothing is computed while a graph is captured, because the graph would replay it."""
    [line] = of(said, "in_graph")
    assert (line["unseen"], line["output"], line["is_finite"]) == (Unseen.GRAPH, Unseen.GRAPH, None)


def test_outputs_are_read_after_the_wait(said: list[dict[str, Any]]) -> None:
    """Outputs have a checksum only after the wait, and their Work is not held longer."""
    [line] = of(said, "asynchronous")
    assert not line["is_held"]
    assert (line["before"], line["is_equal"]) == (None, True)


def test_parameters_of_replicas(said: list[dict[str, Any]]) -> None:
    """Checksums and sums equal the host's, of the parameters before the step that changes them."""
    [line] = of(said, "parameters")
    assert line["early"] == []
    assert line["is_equal"]
    assert line["count"] == 5


def test_odd_tensors(said: list[dict[str, Any]]) -> None:
    """Each tensor has statistics, or a reason for having none. Integers and empty tensors are skipped."""
    [line] = of(said, "odd_inputs")
    assert line["found"] == [
        ["torch.float8_e4m3fn", None, Unseen.TYPE, None],
        ["torch.int64", True, None, None],
        ["torch.float32", True, None, None],
        ["torch.float32", None, Unseen.LAYOUT, Unseen.LAYOUT],
    ]


def test_mixed_devices(said: list[dict[str, Any]]) -> None:
    """Of tensors on two devices, those on the first have statistics. The others are left out with a reason."""
    [line] = of(said, "mixed_devices")
    assert (line["described"], line["unseen"], line["output"]) == (1, Unseen.DEVICE, Unseen.DEVICE)


def test_a_device_that_has_failed(said: list[dict[str, Any]]) -> None:
    """After a device error nothing more is known, and calls work as before."""
    [line] = of(said, "device_fails")
    assert line["found"] == [[None, Unseen.DEVICE]] * 3


def test_only_our_thread_asks(said: list[dict[str, Any]]) -> None:
    """The program's threads only enqueue, and never query an event."""
    [line] = of(said, "threads")
    assert line["queried_by"] == ["otel-torchdist-cuda"]
