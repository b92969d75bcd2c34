"""Three ranks issue every operation of `torch.distributed`, and print the expected records.

There is a line of JSON for each operation, in the order of issue.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import P2POp, ReduceOp
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.support.ranks.rank import GATHERS_INTO_TENSOR, SHOWS_REDUCE_OP, join, rank, say, start_capture, world_size

ANY = None
"""Sizes that depend on a pickle."""


class Issuer:
    """Issues operations and prints their expected records."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)

    def __call__(self, call: Callable[[], Any], *operations: dict[str, Any], waits: bool = False) -> Any:
        """Issue these operations by one call on one line; wait for the Works that it returns if asked to."""
        result = call()
        for operation in operations:
            facts = {"ranks": self.ranks, "line": call.__code__.co_firstlineno, "is_async": waits, **operation}
            say(**facts)
        for work in result if isinstance(result, list) else [result]:
            if waits:
                work.wait()
        return result


def operation(
    name: str,
    *shapes: Sequence[int],
    size: int | None = ANY,
    dtype: str = "float32",
    reduce_op: str = "",
    peer: int = -1,
    tag: int = 0,
    **others: Any,
) -> dict[str, Any]:
    """Return the expected record of an operation; `size` is in bytes."""
    return {
        "name": name,
        "shapes": [list(shape) for shape in shapes] or ANY,
        "size": size,
        "dtypes": [dtype],
        "reduce_op": reduce_op if SHOWS_REDUCE_OP else "",
        "peer": peer,
        "tag": tag,
        **others,
    }


BARRIER = {**operation("barrier", size=0), "shapes": [], "dtypes": []}


def main() -> None:
    """Issue all of them."""
    warnings.simplefilter("ignore", FutureWarning)
    capture = start_capture()
    join()
    for part in (collectives, rooted, coalesced, point_to_point, objects):
        part(Issuer(range(world_size())))
    of_two(Issuer([0, 2]))
    dist.destroy_process_group()
    capture.uninstall()


def collectives(issue: Issuer) -> None:
    """Issue collectives without a root."""
    n = world_size()
    four, six = torch.ones(4), torch.ones(2, 3, dtype=torch.float64)
    issue(lambda: dist.all_reduce(four), operation("all_reduce", [4], size=16, reduce_op="sum"))
    for _ in range(20):  # often enough to use the cached plan of the call
        issue(lambda: dist.all_reduce(four), operation("all_reduce", [4], size=16, reduce_op="sum"))
    expected = operation("all_reduce", [2, 3], size=48, dtype="float64", reduce_op="max")
    issue(lambda: dist.all_reduce(six, ReduceOp.MAX, async_op=True), expected, waits=True)
    small = torch.ones(3, dtype=torch.int64)
    expected = operation("all_reduce", [3], size=24, dtype="int64", reduce_op="product")
    issue(lambda: dist.all_reduce(small, op=ReduceOp.PRODUCT), expected)
    issue(lambda: dist.all_reduce(torch.ones(0)), operation("all_reduce", [0], size=0, reduce_op="sum"))
    sparse = torch.eye(3).to_sparse()
    issue(lambda: dist.all_reduce(sparse), operation("all_reduce", [3, 3], size=36, reduce_op="sum"))
    outputs = [torch.empty(4) for _ in range(n)]
    issue(lambda: dist.all_gather(outputs, four), operation("all_gather", [4], size=16))
    issue(lambda: dist.all_gather(outputs, four, async_op=True), operation("all_gather", [4], size=16), waits=True)
    wide = torch.empty(4 * n)
    issue(lambda: dist.all_gather_into_tensor(wide, four), operation("all_gather_into_tensor", [4], size=16))
    inputs = [torch.ones(2) for _ in range(n)]
    two = torch.empty(2)
    expected = operation("reduce_scatter", [2], size=8 * n, reduce_op="sum")
    issue(lambda: dist.reduce_scatter(two, inputs), expected)
    issue(lambda: dist.reduce_scatter(two, inputs, async_op=True), expected, waits=True)
    flat = torch.ones(2 * n)
    expected = operation("reduce_scatter_tensor", [2 * n], size=8 * n, reduce_op="min")
    issue(lambda: dist.reduce_scatter_tensor(two, flat, op=ReduceOp.MIN), expected)
    issue(lambda: dist.reduce_scatter_tensor(two, flat, op=ReduceOp.MIN, async_op=True), expected, waits=True)
    expected = operation("all_to_all", *([2] for _ in range(n)), size=8 * n)
    outputs = [torch.empty(2) for _ in range(n)]
    with contextlib.suppress(RuntimeError):  # gloo supports it only in newer versions of torch
        issue(lambda: dist.all_to_all(outputs, inputs), expected)
    expected = operation("all_to_all_single", [2 * n], size=8 * n)
    received = torch.empty(2 * n)
    issue(lambda: dist.all_to_all_single(received, flat), expected)
    issue(lambda: dist.all_to_all_single(received, flat, async_op=True), expected, waits=True)
    issue(lambda: dist.barrier(), BARRIER)
    issue(lambda: dist.barrier(async_op=True), BARRIER, waits=True)
    issue(lambda: dist.monitored_barrier(), {**BARRIER, "name": "monitored_barrier"})


def rooted(issue: Issuer) -> None:
    """Issue collectives with a root."""
    n, here = world_size(), rank()
    four = torch.ones(4)
    expected = operation("broadcast", [4], size=16 if here == 1 else 0, peer=1)
    issue(lambda: dist.broadcast(four, src=1), expected)
    issue(lambda: dist.broadcast(four, src=1, async_op=True), expected, waits=True)
    expected = operation("reduce", [4], size=16, peer=2, reduce_op="sum")
    issue(lambda: dist.reduce(four, dst=2), expected)
    outputs = [torch.empty(4) for _ in range(n)] if here == 0 else None
    issue(lambda: dist.gather(four, outputs, dst=0), operation("gather", [4], size=16, peer=0))
    if GATHERS_INTO_TENSOR:
        wide = torch.empty(4 * n) if here == 1 else None
        expected = operation("gather_into_tensor", [4], size=16, peer=1)
        with contextlib.suppress(RuntimeError):  # gloo does not support it yet
            issue(lambda: dist.gather_into_tensor(four, wide, dst=1), expected)
    two = torch.empty(2)
    parts = [torch.ones(2) for _ in range(n)] if here == 1 else None
    expected = operation("scatter", [2], size=8 * n if here == 1 else 0, peer=1)
    issue(lambda: dist.scatter(two, parts, src=1), expected)
    issue(lambda: dist.scatter(two, parts, src=1, async_op=True), expected, waits=True)


def coalesced(issue: Issuer) -> None:
    """Pass several tensors at once: one operation of the dispatcher."""
    n = world_size()
    one, two = torch.ones(1), torch.ones(2)
    expected = operation("all_reduce_coalesced", [1], [2], size=12, reduce_op="sum")
    issue(lambda: dist.all_reduce_coalesced([one, two]), expected)
    gathered = [[torch.empty(1), torch.empty(2)] for _ in range(n)]
    issue(lambda: dist.all_gather_coalesced(gathered, [one, two]), operation("all_gather_coalesced", [1], [2], size=12))
    ten = [torch.ones(1) for _ in range(10)]
    # The signature holds eight of them; the size counts all.
    expected = operation("all_reduce_coalesced", *([1] for _ in range(8)), size=40, reduce_op="sum", tensors=10)
    issue(lambda: dist.all_reduce_coalesced(ten), expected)

    def manage(of: Callable[[], Any], is_async: bool) -> Any:
        with _coalescing_manager(async_ops=is_async) as manager:
            of()
            of()
        return manager

    def reduce_two() -> None:
        dist.all_reduce(two)

    def gather_two() -> None:
        dist.all_gather_into_tensor(torch.empty(2 * n), two)

    def scatter_two() -> None:
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * n))

    line = {"line": manage.__code__.co_firstlineno + 1}
    expected = operation("all_reduce_coalesced", [2], [2], size=16, reduce_op="sum", **line)
    issue(lambda: manage(reduce_two, False), expected)
    issue(lambda: manage(reduce_two, True), expected, waits=True)
    expected = operation("all_gather_into_tensor_coalesced", [2], [2], size=16, **line)
    issue(lambda: manage(gather_two, True), expected, waits=True)
    expected = operation("reduce_scatter_tensor_coalesced", [2 * n], [2 * n], size=16 * n, reduce_op="sum", **line)
    issue(lambda: manage(scatter_two, False), expected)


def point_to_point(issue: Issuer) -> None:
    """Rank 0 and rank 1 exchange messages; every rank sends to the next."""
    n, here = world_size(), rank()
    four = torch.ones(4)
    for _ in range(2):
        if here == 0:
            issue(lambda: dist.send(four, 1, tag=5), operation("send", [4], size=16, peer=1, tag=5))
        if here == 1:
            issue(lambda: dist.recv(four, 0, tag=5), operation("recv", [4], size=0, peer=0, tag=5))
    if here == 0:
        issue(lambda: dist.send(four, 2), operation("send", [4], size=16, peer=2))
    if here == 2:
        source = issue(lambda: dist.recv(four), operation("recv", [4], size=0))
        assert source == 0
    following, previous = (here + 1) % n, (here - 1) % n
    sent = operation("send", [4], size=16, peer=following, tag=3)
    received = operation("recv", [4], size=0, peer=previous, tag=3)
    into = torch.empty(4)
    work = issue(lambda: dist.isend(four, following, tag=3), sent)
    issue(lambda: dist.irecv(into, previous, tag=3), received).wait()
    work.wait()
    sent, received = {**sent, "tag": 0}, {**received, "tag": 0}
    pair = [P2POp(dist.isend, four, following), P2POp(dist.irecv, into, previous)]
    for work in issue(lambda: dist.batch_isend_irecv(pair), sent, received):
        work.wait()


def objects(issue: Issuer) -> None:
    """Issue object operations. Each consists of two tensor operations: the pickle's length, then the pickle."""
    n, here = world_size(), rank()
    pickle = {"dtype": "uint8"}
    length = {"dtype": "int64"}
    things: list[Any] = [{"rank": here}]
    expected = [operation("broadcast", **kind, peer=0) for kind in (length, pickle)]
    issue(lambda: dist.broadcast_object_list(things, src=0), *expected)
    gathered: list[Any] = [None] * n
    # As torch 2.15 does, unlike 2.14.
    into_one = " all_gather(" not in inspect.getsource(dist.all_gather_object)
    gather = "all_gather_into_tensor" if into_one else "all_gather"
    expected = [operation(gather, **kind) for kind in (length, pickle)]
    issue(lambda: dist.all_gather_object(gathered, here), *expected)
    expected = [operation("all_gather", **length), operation("gather", **pickle, peer=2)]
    issue(lambda: dist.gather_object(here, gathered if here == 2 else None, dst=2), *expected)
    mine: list[Any] = [None]
    expected = [
        operation("broadcast", **length, peer=0),
        operation("scatter", **pickle, peer=0),
        operation("scatter", **length, peer=0),
    ]
    issue(lambda: dist.scatter_object_list(mine, gathered if here == 0 else None, src=0), *expected)
    if here == 1:
        expected = [operation("send", **kind, peer=2) for kind in (length, pickle)]
        issue(lambda: dist.send_object_list(things, 2), *expected)
    if here == 2:
        expected = [operation("recv", **kind, peer=1) for kind in (length, pickle)]
        issue(lambda: dist.recv_object_list(things, 1), *expected)


def of_two(issue: Issuer) -> None:
    """Use a smaller group; peers are global ranks."""
    pair = dist.new_group([0, 2], group_desc="a pair")
    if rank() == 1:
        return
    four = torch.ones(4)
    issue(lambda: dist.all_reduce(four, group=pair), operation("all_reduce", [4], size=16, reduce_op="sum"))
    expected = operation("broadcast", [4], size=16 if rank() == 2 else 0, peer=2)
    issue(lambda: dist.broadcast(four, src=2, group=pair), expected)
    issue(lambda: dist.barrier(group=pair), BARRIER)


if __name__ == "__main__":
    main()
