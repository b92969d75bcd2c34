"""For scripts that run twice: the counts of torch, and the results of the training.

It does not depend on the package under test.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

REPORTS = "THIRDPARTY_REPORTS"
"""Variable: the directory for reports."""


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the c10d operations that are dispatched inside the block, on all threads."""
    issued: Counter[str] = Counter()
    # Checkpoints are written by a thread of their own.
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as profiler:
        yield issued
    issued.update(event.name for event in profiler.events() or () if event.name.startswith("c10d::"))


def exactly(loss: torch.Tensor | float) -> str:
    """A number, exact to the last bit."""
    return float(loss.item() if isinstance(loss, torch.Tensor) else loss).hex()


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of tensors; of DTensors, the shards of this rank."""
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        found.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def report(issued: Counter[str], launch: int = 0, **facts: Any) -> None:
    """Report the results of the training: to a file, because libraries print what they like.

    Args:
        issued: The counts of torch.
        launch: Which training of the job this was.
        **facts: Values that must be the same with us.
    """
    path = Path(os.environ[REPORTS], f"{os.environ['RANK']}-{launch}.json")
    path.write_text(json.dumps({"issued": issued, **facts}))
