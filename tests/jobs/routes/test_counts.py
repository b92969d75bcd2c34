"""The counts that tapes are compared with are themselves right: checked against operations counted by hand."""

from __future__ import annotations

from collections import Counter

from tests.jobs.routes.twins import Twins

WORLD = "0,1,2/0"


def test_of_each_kind(twins: Twins) -> None:
    """The profiler counts every operation of a script, and gloo's number increases by one for each, or by its parts."""
    for taken in twins.of("eager", 3).routes["synchronous"]:
        assert taken.dispatched == {
            "all_reduce": 51,
            "all_gather": 1,
            "all_gather_into_tensor": 1,
            "reduce_scatter": 1,
            "reduce_scatter_tensor": 1,
            "all_to_all_single": 2,
            "broadcast": 1,
            "reduce": 1,
            "gather": 1,
            "scatter": 1,
            "all_reduce_coalesced": 1,
            "all_gather_coalesced": 1,
        }
        # One each, except that `reduce_scatter` of three parts is three.
        assert taken.gloo == {WORLD: 63 + 2}


def test_of_sends(twins: Twins) -> None:
    """Sends and receives are counted on the rank that issues them."""
    sends = [(5, 4), (4, 5), (4, 4)]
    for taken, (sent, received) in zip(twins.of("eager", 3).routes["point_to_point"], sends, strict=True):
        assert taken.dispatched == {"send": sent, "recv": received}
        assert taken.gloo == {WORLD: sent + received}


def test_of_barriers(twins: Twins) -> None:
    """One barrier, and two monitored ones in which rank 0 exchanges messages with two others, and they with it."""
    for taken, talks in zip(twins.of("eager", 3).routes["barriers"], [4, 2, 2], strict=True):
        assert taken.dispatched == {"barrier": 1, "monitored_barrier": 2}
        assert taken.gloo == {WORLD: 1 + 2 * talks}


def test_by_group(twins: Twins) -> None:
    """Operations are distinguished by their group, and groups of the same members by their order."""
    first, second, *_ = twins.of("groups", 4).routes["new_group"]
    assert first.gloo == {"0,2/0": 2}
    assert second.gloo == {"1,3/0": 2, "1,3/1": 2, "1,3/2": 2}


def test_of_other_threads(twins: Twins) -> None:
    """All-reduces that PowerSGD issues from a future's callback on a gloo thread count: two more than DDP's buckets."""
    for taken in twins.of("data_parallel", 4).routes["power_sgd_hook"]:
        assert taken.dispatched["all_reduce"] == 5
        assert sum(taken.gloo.values()) == sum(taken.dispatched.values())


def test_past_the_dispatcher(twins: Twins) -> None:
    """Gloo counts what the dispatcher never saw, and the profiler what gloo was never given."""
    routes = twins.of("unseen", 2).routes
    for taken in routes["direct_backend_calls"]:
        assert (taken.dispatched, taken.gloo) == (Counter(), {"0,1/0": 2})
    for taken in [*routes["meta_tensors"], *routes["fake_tensors"]]:
        assert taken.dispatched["all_reduce"] > 0
        assert taken.gloo == Counter()
