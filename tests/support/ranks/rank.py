"""For scripts that are ranks: their place in the job, their tape, and lines of JSON as output."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.session import Capture
from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.config import CaptureKernel
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from otel_torchdist.native.library import chosen_library
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.ranks.json_lines import say as say

SomePart = TypeVar("SomePart", bound=SessionPart)

TAPES = "TAPES"
"""Variable: the directory for tapes."""
STORE = "STORE"
"""Variable: the file of the job's store."""
TIMEOUT = timedelta(seconds=45)
SHOWS_REDUCE_OP = "op" in torch.classes.c10d.ReduceOp()._method_names()
"""Whether this torch lets a kernel read the reduce op; 2.8 does not."""
GATHERS_INTO_TENSOR = hasattr(dist, "gather_into_tensor")
"""Whether this torch can gather into one tensor, and gathers the lengths of objects that way; it can from 2.15 on."""


def rank() -> int:
    """This process's rank."""
    return int(os.environ["RANK"])


def world_size() -> int:
    """Ranks of the job."""
    return int(os.environ["WORLD_SIZE"])


def start_capture(capacity: int = 4096, observers: Observers | None = None) -> Capture:
    """Capture, switched on without a reader; `observers` is an argument of `Capture`."""
    library = chosen_library(CaptureKernel(os.environ.get(OTEL_PYTHON_TORCHDIST_CAPTURE, "auto")))
    directory = Path(os.environ[TAPES])
    capture = Capture(lambda: directory, capacity, library=library, observers=observers)
    capture.install()
    return capture


def part_of(capture: Capture, kind: type[SomePart]) -> SomePart | None:
    """The part of a capture that is of a class; None if it has none."""
    return next((part for part in capture._recording.parts if isinstance(part, kind)), None)


def join(timeout: timedelta = TIMEOUT, suffix: str = "") -> None:
    """Create the default group on gloo; `suffix` names another store file than the usual one."""
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ[STORE]}{suffix}", rank=rank(), world_size=world_size(), timeout=timeout
    )


def leave() -> None:
    """End the group, when gloo's thread is done with it.

    Before torch 2.15 a rank hangs if its model goes while that thread waits for the GIL to drop the last bucket's Work.
    """
    time.sleep(0.05)
    dist.destroy_process_group()


def own_tape(capture: Capture) -> TapeReader:
    """A reader of this process's current tape."""
    recorder = capture.current_recorder()
    assert recorder is not None
    return TapeReader.of_writer(recorder.tape)
