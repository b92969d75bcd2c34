"""Two ranks make mistakes that torch refuses, first without us and then recorded; each reports what was raised."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.support.ranks.rank import join, rank, say, start_capture

two = torch.ones(2)
imaginary = torch.ones(3, dtype=torch.complex64)
Mistake = Callable[[], Any]


def before_it_is_issued() -> dict[str, Mistake]:
    """Mistakes that never reach a backend."""
    return {
        "no tensor": lambda: dist.all_reduce("everything"),
        "complex maximum": lambda: dist.all_reduce(imaginary, dist.ReduceOp.MAX),
        "to oneself": lambda: dist.send(two, rank()),
        "no list": lambda: dist.all_gather(two, two),
        "a batch of nothing": lambda: dist.batch_isend_irecv([]),
        "an object that is no pickle": lambda: dist.broadcast_object_list([lambda: None], src=rank()),
    }


def by_the_backend() -> dict[str, Mistake]:
    """Mistakes that pass the dispatcher, and are refused behind it: in the call, or when it is waited for."""
    group = dist.group.WORLD
    return {
        "root outside the group": lambda: dist.broadcast(two, src=7),
        "bits of floats": lambda: dist.all_reduce(two, dist.ReduceOp.BAND),
        "bits of floats, asynchronous": lambda: dist.all_reduce(two, dist.ReduceOp.BAND, async_op=True).wait(),
        "too few outputs": lambda: dist.all_gather([torch.empty(2)], two),
        "output of another size": lambda: dist.all_gather([torch.empty(2), torch.empty(3)], two),
        "root that is nobody": lambda: group.broadcast([two], root_of(9)),
        "negative tag": lambda: group.send([two], 1 - rank(), -1),
        "splits that do not add up": lambda: dist.all_to_all_single(torch.empty(2), two, [2, 2], [1, 1]),
        "functional": lambda: functional.wait_tensor(functional.all_reduce(two, "band", group)),
    }


def root_of(number: int) -> dist.BroadcastOptions:
    """Options with a root."""
    options = dist.BroadcastOptions()
    options.rootRank = number
    return options


def came_back(mistake: Mistake) -> dict[str, Any]:
    """What a mistake raises, and which functions of ours it passed."""
    try:
        mistake()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame.name for frame in frames if "/otel_torchdist/" in frame.filename]
        chain = [type(error.__cause__).__name__, type(error.__context__).__name__]
        return {"type": type(error).__qualname__, "text": str(error), "chain": chain, "ours": ours}
    raise AssertionError("torch takes this now")


def report() -> None:
    """Make every mistake, and show that the group still works."""
    for is_issued, mistakes in ((False, before_it_is_issued()), (True, by_the_backend())):
        for name, mistake in mistakes.items():
            say(mistake=name, is_issued=is_issued, **came_back(mistake))
    total = torch.ones(1)
    dist.all_reduce(total)
    say(still_works=float(total))


warnings.simplefilter("ignore")
join()
report()
start_capture()
report()
