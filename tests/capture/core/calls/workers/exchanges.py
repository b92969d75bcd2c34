"""Ranks that exchange parts of different sizes in all ways. Each call reports its sent and received bytes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.ranks.rank import join, rank, say, start_capture, world_size

WIDTH = 3
ROW = 4 * WIDTH
MANY = 100
VARIED = 50


def part_of(sender: int, receiver: int) -> int:
    """Return the number of rows that a rank sends to another."""
    return (2 * sender + 3 * receiver + sender * receiver) % 5


def sent() -> list[int]:
    """Return the number of rows that this rank sends to each."""
    return [part_of(rank(), other) for other in range(world_size())]


def received() -> list[int]:
    """Return the number of rows that this rank receives from each."""
    return [part_of(other, rank()) for other in range(world_size())]


def rows(count: int) -> torch.Tensor:
    """A tensor with some rows."""
    return torch.ones(count, WIDTH)


def said(parts: Sequence[int] | None, expected: Sequence[int] = (), unit: int = ROW) -> None:
    """Report the preceding call; None for an even one."""
    sizes = None if parts is None else [part * unit for part in parts]
    say(sent=sizes, received=sum(expected) * unit, expected=[part * unit for part in expected], unit=unit)


def even() -> None:
    """Exchange equal parts, with and without split sizes."""
    size = world_size()
    dist.all_to_all_single(rows(2 * size), rows(2 * size))
    said(None)
    dist.all_to_all_single(rows(2 * size), rows(2 * size), [2] * size, [2] * size)
    said(None)
    dist.all_to_all_single(torch.tensor(received()), torch.tensor(sent()))
    said(None)


def uneven() -> None:
    """Exchange parts of different sizes."""
    dist.all_to_all_single(rows(sum(received())), rows(sum(sent())), received(), sent())
    said(sent(), received())
    work = dist.all_to_all_single(rows(sum(received())), rows(sum(sent())), received(), sent(), async_op=True)
    assert work is not None
    work.wait()
    said(sent(), received())


def uneven_elsewhere() -> None:
    """Send equal parts, and receive unequal ones."""
    size = world_size()
    given = list(range(1, size + 1))
    dist.all_to_all_single(rows(sum(given)), rows((rank() + 1) * size), given, None)
    said([rank() + 1] * size, given)


def nothing() -> None:
    """Rank 0 sends nothing, and receives something."""
    outgoing, incoming = [2 * (rank() > 0)] * world_size(), [2 * (other > 0) for other in range(world_size())]
    dist.all_to_all_single(rows(sum(incoming)), rows(sum(outgoing)), incoming, outgoing)
    said(outgoing, incoming)


def compiled() -> None:
    """Call functional exchanges, eager and compiled."""
    group = dist.group.WORLD
    assert group is not None

    def exchanged(x: torch.Tensor, incoming: list[int], outgoing: list[int]) -> torch.Tensor:
        return functional.all_to_all_single(x * 2, incoming, outgoing, group) + 1

    for function in (exchanged, torch.compile(exchanged, backend="aot_eager", fullgraph=True, dynamic=True)):
        for _ in range(2):
            assert function(rows(sum(sent())), received(), sent()).shape == (sum(received()), WIDTH)
            said(sent(), received())


def varying(names_bytes: int) -> None:
    """Exchange a constant number of rows, with varying peers."""
    size = world_size()
    for nth in range(VARIED):
        parts = [20 + (nth * other) % 7 for other in range(size)]
        parts[0] = 30 * size - sum(parts[1:])
        # Each rank sends the same to itself and its neighbors, one place on.
        outgoing = [parts[(other - rank()) % size] for other in range(size)]
        incoming = [parts[(rank() - other) % size] for other in range(size)]
        dist.all_to_all_single(rows(sum(incoming)), rows(sum(outgoing)), incoming, outgoing)
        said(outgoing, incoming) if len({*outgoing}) > 1 else said(None)
        if not nth:
            names_bytes = recorder.tape.path.with_suffix(".names").stat().st_size
    assert recorder.tape.path.with_suffix(".names").stat().st_size == names_bytes


def lists() -> None:
    """Exchange lists of tensors on a backend that moves no data: gloo only takes even lists."""
    dist.all_to_all([torch.ones(2)] * MANY, [torch.ones(2)] * MANY)
    said(None)
    pair = dist.new_group([0, 1])
    dist.all_to_all([torch.ones(3), torch.ones(2, 4)], [torch.ones(3), torch.ones(2, 1)], group=pair)
    said([3, 2], [3, 8], 4)
    dist.all_to_all([torch.ones(3), torch.ones(4)], [torch.ones(3), torch.ones(4)], group=pair)
    said([3, 4], [3, 4], 4)


def many() -> None:
    """Exchange in a group of many members."""
    parts = [other % 7 for other in range(MANY)]
    dist.all_to_all_single(rows(sum(parts)), rows(sum(parts)), parts, parts)
    say(sent=[], largest=6 * ROW, received=sum(parts) * ROW, expected=[], unit=ROW)


def gathered(group: dist.ProcessGroup | None, outputs: list[torch.Tensor]) -> None:
    """Gather a tensor of three rows into a list, twice: the library records the second call."""
    for _ in range(2):
        dist.all_gather(outputs, rows(3), group=group)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    capture = start_capture()
    join()
    recorder = capture.current_recorder()
    assert recorder is not None
    for part in (even, uneven, uneven_elsewhere, nothing, compiled):
        part()
    gathered(None, [rows(3) for _ in range(world_size())])
    varying(0)
    dist.destroy_process_group()
    if rank() == 0:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=MANY)
        lists()
        many()
        gathered(None, [rows(3)] * MANY)
        pair = dist.new_group([0, 1])
        for copies in (1, 2, 1):
            gathered(pair, [rows(3), torch.empty(copies, 3, WIDTH)])
        dist.destroy_process_group()
