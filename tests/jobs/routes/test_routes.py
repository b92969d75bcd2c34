"""However a program communicates, each operation is on the tape once, as torch and gloo count without us."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from otel_torchdist.model.kinds import Flag, TapeState
from tests.jobs.routes.twins import Taken, Twin, Twins, gloo_operations
from tests.support.tapes.recorded import Recorded

GATHER = "all_gather_into_tensor"
SCATTER = "reduce_scatter_tensor"
SENDS = {"send", "recv"}


@dataclass(frozen=True)
class Worker:
    """A worker script.

    Attributes:
        ranks: Number of ranks it runs on.
        routes: Its routes, each with operations that it must issue to match its name.
    """

    ranks: int
    routes: dict[str, set[str]]


WORKERS = {
    "eager": Worker(
        3,
        {
            "synchronous": {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"},
            "asynchronous": {GATHER, SCATTER, "all_to_all_single", "barrier"},
            "to_all_lists": {"all_to_all"},
            "object_collectives": {"broadcast", "all_gather", "gather", "scatter", *SENDS},
            "point_to_point": SENDS,
            "from_any_source": SENDS,
            "coalescing_manager": {"all_reduce_coalesced", f"{GATHER}_coalesced", f"{SCATTER}_coalesced"},
            "barriers": {"barrier", "monitored_barrier"},
            "sparse": {"all_reduce"},
        },
    ),
    "groups": Worker(
        4,
        {
            "new_group": {"all_reduce", "broadcast", *SENDS},
            "subgroups": {"all_reduce", GATHER},
            "split": set(),
            "mesh_of_two_dimensions": {"all_reduce"},
            "groups_in_python": {"all_reduce", "barrier"},
            "made_by_hand": {"all_reduce"},
        },
    ),
    "early": Worker(
        3,
        {
            "in_old_groups": {"all_reduce", "broadcast", "barrier"},
            "in_old_mesh": {GATHER},
            "in_new_group": {"all_reduce"},
            "with_old_model": {"all_reduce", "broadcast"},
            "waiting_for_old_work": set(),
        },
    ),
    "data_parallel": Worker(
        4,
        {
            "buckets": {"all_gather", "broadcast", "all_reduce"},
            "gradients_as_views": {"broadcast", "all_reduce"},
            "unused_parameters": {"all_reduce"},
            "uneven_inputs": {"all_reduce"},
            "all_reduce_hook": {"all_reduce"},
            "compressing_hooks": {"all_reduce"},
            "power_sgd_hook": {"all_reduce"},
            "own_hook": {"all_reduce"},
            "local_sgd": {"all_reduce"},
            "averaging_in_tiers": {"all_reduce"},
            "sharded_optimizer": {"all_reduce", "broadcast"},
        },
    ),
    "sharded": Worker(
        4,
        {
            "fsdp1_full_shard": {SCATTER, "all_reduce"},
            "fsdp1_shard_grad_op": {SCATTER, "all_reduce"},
            "fsdp1_no_shard": {"all_reduce"},
            "fsdp2": {GATHER, SCATTER, "all_reduce"},
            "fsdp2_in_two_dimensions": {GATHER, SCATTER, "all_reduce"},
            "fsdp2_accumulating": {GATHER, SCATTER},
        },
    ),
    "parallel": Worker(
        4,
        {
            "tensor_parallel": {"scatter", "broadcast", "all_reduce", f"{GATHER}_coalesced", f"{SCATTER}_coalesced"},
            "tensor_parallel_and_sharded": {"all_reduce", GATHER, SCATTER},
            "redistribution": {"scatter", "broadcast", "all_reduce", f"{GATHER}_coalesced", f"{SCATTER}_coalesced"},
            "in_two_dimensions": {"scatter", f"{GATHER}_coalesced"},
            "gpipe": SENDS,
            "one_forward_one_backward": SENDS,
            "interleaved": SENDS,
        },
    ),
    "functional": Worker(
        2,
        {
            "eager": {"all_reduce", f"{GATHER}_coalesced", f"{SCATTER}_coalesced", "all_to_all_single", "broadcast"},
            "with_gradients": {f"{GATHER}_coalesced", f"{SCATTER}_coalesced", "all_to_all_single"},
            "not_waited_for": {"all_reduce", "barrier"},
            "aot_eager": {"all_reduce", f"{GATHER}_coalesced", f"{SCATTER}_coalesced"},
            "inductor": {"all_reduce", f"{GATHER}_coalesced", f"{SCATTER}_coalesced"},
            "compiled_ddp": {"broadcast", "all_reduce"},
        },
    ),
}

WITHOUT_PYTHON = {"power_sgd_hook"}
"""Routes on which some operations are issued by callbacks of futures on gloo's threads, without a user frame."""
MAYBE_REFUSED = {"to_all_lists"}
"""Routes that an older torch refuses."""


@pytest.fixture(params=list(WORKERS))
def twin(request: pytest.FixtureRequest, twins: Twins) -> Twin:
    """Both runs of a worker."""
    return twins.of(request.param, WORKERS[request.param].ranks)


@pytest.fixture(params=[f"{worker}-{route}" for worker, its in WORKERS.items() for route in its.routes])
def route(request: pytest.FixtureRequest, twins: Twins) -> list[Taken]:
    """A route as each rank took it."""
    worker, name = request.param.split("-")
    return twins.of(worker, WORKERS[worker].ranks).routes[name]


def test_each_operation_once(route: list[Taken], request: pytest.FixtureRequest) -> None:
    """Each rank's tape has as many operations of each name as torch's profiler saw without us, and they all ended."""
    worker, name = request.node.callspec.params["route"].split("-")
    for taken in route:
        assert Counter(operation.name for operation in taken.operations) == taken.dispatched
        failures = {operation.failure for operation in taken.operations if not operation.has_ended}
        assert failures <= ({"RuntimeError"} if name in MAYBE_REFUSED else set())
    seen = {operation.name for taken in route for operation in taken.operations}
    assert seen >= WORKERS[worker].routes[name]


def test_in_the_right_group(route: list[Taken]) -> None:
    """Each group's part of a tape matches what gloo was given for that group without us."""
    for taken in route:
        assert gloo_operations(taken) == taken.gloo


def test_nothing_else_is_there(twin: Twin, request: pytest.FixtureRequest) -> None:
    """The table above names all routes; nothing was lost; operations before and after the routes have ended too."""
    assert set(twin.routes) == set(WORKERS[request.node.callspec.params["twin"]].routes)
    for tape in twin.tapes:
        assert (tape.lost, tape.status.records_dropped, tape.status.state) == (0, 0, TapeState.FINISHED)
        assert all(operation.has_ended for operation in [*tape.operations, *tape.rendezvous] if not operation.failure)


def test_call_sites_are_the_users_lines(twin: Twin) -> None:
    """Operations come from the lines that the worker marks, and each of these lines has issued some."""
    found: set[tuple[str, int]] = set()
    for name, route in twin.routes.items():
        sites = {(operation.function, operation.line) for taken in route for operation in taken.operations}
        if name in WITHOUT_PYTHON:
            sites.discard(("", 0))  # from a thread of the backend's, if the future was not complete before
        found |= {(function.rpartition(".")[2], line) for function, line in sites}
    assert found == twin.marked


def test_sequences_agree(twin: Twin) -> None:
    """A group's collectives are numbered from 1 without a gap, and all members have the same name at each number."""
    by_group: dict[tuple[str, int], dict[int, list[tuple[int, str]]]] = {}
    for rank, tape in enumerate(twin.tapes):
        for operation in tape.operations:
            group = operation.group
            if group.aligned and not operation.failure and Flag.POINT_TO_POINT not in operation.raw.flags:
                channels = by_group.setdefault((group.key, len(group.ranks)), {})
                channels.setdefault(rank, []).append((operation.raw.sequence, operation.name))
    assert by_group
    for (_, size), channels in by_group.items():
        assert len(channels) == size
        first, *others = channels.values()
        assert [sequence for sequence, _ in first] == list(range(1, len(first) + 1))
        assert all(channel == first for channel in others)


def test_sends_meet_receives(twin: Twin) -> None:
    """Each receive matches one send of the same peers, tag and place; other sends went to `recv` from any rank."""
    sent: Counter[tuple[object, ...]] = Counter()
    received: Counter[tuple[object, ...]] = Counter()
    from_any_rank = 0
    for rank, tape in enumerate(twin.tapes):
        for operation in tape.operations:
            peer = operation.raw.peer
            if operation.name == "send":
                sent[place_of(operation, rank, peer)] += 1
            elif operation.name == "recv" and peer >= 0:
                received[place_of(operation, peer, rank)] += 1
            elif operation.name == "recv":
                from_any_rank += 1
    assert received <= sent
    assert sent.total() - received.total() == from_any_rank
    assert set(sent.values()) <= {1}


def place_of(operation: Recorded, source: int, destination: int) -> tuple[object, ...]:
    """What a send and its receive have in common."""
    return operation.group.key, source, destination, operation.raw.tag, operation.raw.sequence
