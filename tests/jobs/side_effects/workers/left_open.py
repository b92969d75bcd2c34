"""Two ranks leave operations open that are never waited for; rank 0 watches both tapes, and then a real stall."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.support.ranks.rank import STORE, TAPES, join, own_tape, rank, say, start_capture, world_size
from tests.support.tapes.tape_watch import Lookout, tapes_of_all_ranks
from tests.support.waiting import until


def reduce_scatter() -> None:
    """Each has ended when the other rank's wait is over, and gloo's Work does not show it."""
    works = [
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(4), async_op=True),
        dist.reduce_scatter(torch.empty(2), [torch.ones(2), torch.ones(2)], async_op=True),
    ]
    result = functional.reduce_scatter_tensor(torch.ones(8), "sum", 0, dist.group.WORLD)
    if rank() == 0:
        kept.extend([*works, result])
        return
    functional.wait_tensor(result)
    for work in works:
        work.wait()


def point_to_point() -> None:
    """Receives that are never sent to, sends that are received in time, and receives that are never queried."""
    other = 1 - rank()
    kept.append(dist.irecv(torch.empty(3), other, tag=1))
    kept.append(dist.irecv(torch.empty(4), tag=2))
    kept.append(dist.isend(torch.ones(5), other, tag=3))
    kept.append(dist.irecv(torch.empty(5), other, tag=3))


def stand_by() -> None:
    """Be in no operation until rank 0 has seen enough."""
    ready.touch()
    until(done.exists)


def look() -> None:
    """Watch what was left open, and then an operation in which the other rank is absent."""
    until(ready.exists)
    lookout = Lookout(tapes_of_all_ranks(own_tape(capture), world_size(), Path(os.environ[TAPES])), float(sys.argv[1]))
    lookout.well_past_the_threshold()
    say(suspected=lookout.suspected, verdicts=len(lookout.verdicts), open_for=lookout.open_for())
    kept.append(dist.all_reduce(torch.ones(6), async_op=True))
    lookout.until(lambda: lookout.verdicts)
    [given] = lookout.verdicts
    say(suspected=lookout.suspected, kind=given.verdict.kind.value, ranks=given.verdict.ranks)
    done.touch()


warnings.simplefilter("ignore", FutureWarning)
ready, done = Path(os.environ[STORE] + "-ready"), Path(os.environ[STORE] + "-done")
kept: list[Any] = []
capture = start_capture()
join()
reduce_scatter()
point_to_point()
dist.barrier()
if rank() == 0:
    look()
else:
    stand_by()
    dist.all_reduce(torch.ones(6))
