"""Has the ranks of a stalled run save their state, and reports which of it fits together.

Each agent asks the ranks of its own node, and waits for those of all nodes: what follows, usually `abort`, ends the
job, and launchers then end the ranks of the other nodes too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

from otel_torchdist.actions.stalled_run import StalledRun
from otel_torchdist.errors import TapeError
from otel_torchdist.job.directory import tapes_in
from otel_torchdist.job.requests.commands import RescueRequest, request_rescue
from otel_torchdist.model.rescue import NO_RESCUE, RescueState
from otel_torchdist.stall.events import OngoingStall
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.verdict.wording.ends import describe_rescue

CHECK_S: Final = 0.2
BEGIN_S: Final = 15.0
"""A rank checks for requests once a second, and the grace period of another node's agent may end some seconds later."""
MARGIN_S: Final = 3.0


def rescue_ranks(stall: StalledRun, timeout_s: float, ongoing: Callable[[], OngoingStall | None]) -> str:
    """Have the ranks of this node save their state; returns as text what those of all nodes have saved.

    Args:
        stall: The stall.
        timeout_s: How long a rank may take.
        ongoing: Returns the stall as it was last seen; None once it is over.
    """
    asked, world_size = _ask(stall)
    began = time.monotonic()
    seen, over = ongoing(), ""
    if seen is None:
        return "skipped: the stall is over"
    while not over and _may_come(seen, world_size, time.monotonic() - began, timeout_s):
        time.sleep(CHECK_S)
        now = ongoing()
        seen, over = (now, "") if now is not None else (seen, "; the stall is over")
    return f"asked {asked} ranks: {describe_rescue(seen.rescues, world_size)}{over}"


def _ask(stall: StalledRun) -> tuple[int, int]:
    """Request it of each rank of this node; returns how many were asked, and the number of ranks of the run."""
    request = RescueRequest(stall.run, stall.trace_id, stall.verdict, stall.ranks, stall.text)
    asked, world_size = 0, 0
    for path in tapes_in(stall.directory):
        with contextlib.suppress(TapeError), contextlib.closing(TapeReader(path, os.geteuid())) as tape:
            if tape.identity.nonce in stall.nonces and tape.is_alive():
                request_rescue(path, request)
                asked, world_size = asked + 1, tape.identity.world_size
    return asked, world_size


def _may_come(seen: OngoingStall, world_size: int, passed_s: float, timeout_s: float) -> bool:
    """Whether a rank may yet save its state; of those of other nodes it may take a moment to learn anything."""
    states = {seen.rescues.get(rank, NO_RESCUE).state for rank in range(world_size)}
    if RescueState.NONE in states and passed_s < BEGIN_S:
        return True
    return RescueState.RUNNING in states and passed_s < BEGIN_S + timeout_s + MARGIN_S
