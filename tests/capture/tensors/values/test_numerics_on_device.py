"""Values on a device, which is simulated: found without waiting for it, as they were, and held by nothing."""

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
    """What a rank says that goes through all parts; where its host would wait for its device, an error is raised."""
    job = jobs.run("numeric_on_device", 1, str(simulated_library()))
    assert "internal error" not in job.ranks[0].err
    return job.ranks[0].lines()


def of(said: list[dict[str, Any]], part: str) -> list[dict[str, Any]]:
    """The lines of a part."""
    return [line for line in said if line.get("part") == part]


def test_a_wait_for_the_device_raises(said: list[dict[str, Any]]) -> None:
    """So the other tests show that nothing of ours waits: with what would, they fail."""
    [line] = of(said, "waits")
    assert line["refused"] == ["item", "nonzero", "mask", "to_host", "from_host"]


def test_values_are_those_of_the_host(said: list[dict[str, Any]]) -> None:
    """Every statistic, and the checksums bit by bit, for each type, whether aligned, in order, large or small."""
    lines = of(said, "values")
    assert len(lines) == 16
    for line in lines:
        *found, checksum, output = line["found"]
        *expected, expected_checksum, _ = line["expected"]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
        assert checksum == output == expected_checksum


def test_results_come_in_the_order_of_the_stream(said: list[dict[str, Any]]) -> None:
    """Behind a kernel nothing is claimed; then the NaN is known that the program has long overwritten and dropped."""
    [line] = of(said, "in_order")
    assert line["early"] == line["still"] == [[True, None]]
    assert line["late"] is False
    assert not line["is_held"]


def test_room_is_bounded(said: list[dict[str, Any]]) -> None:
    """What finds no room is not looked at, says so, and is not said to be finite; then there is room again."""
    [line] = of(said, "too_many")
    looked_at = SLOTS // 2  # one for the inputs and one for the outputs of each
    assert line["full"] == [[True, None]] * looked_at + [[None, Unseen.FULL]] * (2 * SLOTS - looked_at)
    assert line["later"] == [True, None]


def test_nothing_is_enqueued_into_a_graph(said: list[dict[str, Any]]) -> None:
    """It would be replayed with it: neither inputs nor outputs are looked at while a graph is captured."""
    [line] = of(said, "in_graph")
    assert (line["unseen"], line["output"], line["is_finite"]) == (Unseen.GRAPH, Unseen.GRAPH, None)


def test_outputs_are_read_after_the_wait(said: list[dict[str, Any]]) -> None:
    """Before it, there is no checksum; and the Work, which has the tensors, is not held beyond it."""
    [line] = of(said, "asynchronous")
    assert not line["is_held"]
    assert (line["before"], line["is_equal"]) == (None, True)


def test_parameters_of_replicas(said: list[dict[str, Any]]) -> None:
    """Checksums and sums by place are those of the host, from before the step that changes the parameters."""
    [line] = of(said, "parameters")
    assert line["early"] == []
    assert line["is_equal"]
    assert line["count"] == 5


def test_odd_tensors(said: list[dict[str, Any]]) -> None:
    """Each is described, or left out with a reason; integers and empty ones cannot hold such values."""
    [line] = of(said, "odd_inputs")
    assert line["found"] == [
        ["torch.float8_e4m3fn", None, Unseen.TYPE, None],
        ["torch.int64", True, None, None],
        ["torch.float32", True, None, None],
        ["torch.float32", None, Unseen.LAYOUT, Unseen.LAYOUT],
    ]


def test_mixed_devices(said: list[dict[str, Any]]) -> None:
    """Of tensors on two devices those on the first are looked at, and the reason is given why the others are not."""
    [line] = of(said, "mixed_devices")
    assert (line["described"], line["unseen"], line["output"]) == (1, Unseen.DEVICE, Unseen.DEVICE)


def test_a_device_that_has_failed(said: list[dict[str, Any]]) -> None:
    """Nothing more is known of it, and the calls go on."""
    [line] = of(said, "device_fails")
    assert line["found"] == [[None, Unseen.DEVICE]] * 3


def test_only_our_thread_asks(said: list[dict[str, Any]]) -> None:
    """The program's threads enqueue, and never ask for an event."""
    [line] = of(said, "threads")
    assert line["queried_by"] == ["otel-torchdist-cuda"]
