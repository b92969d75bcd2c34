"""Rescues this rank in a stall: calls a function of the user that saves its state, on the agent's request.

A rank that hangs in a collective still has its parameters, and usually the GIL is free. The function runs on a separate
thread that is not joined, because the function may hang, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_torchdist.capture.core.intervals import frames_by_thread
from otel_torchdist.capture.parts.optimizer_steps import is_within_step
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_ON_STALL
from otel_torchdist.model.rank_state.rescue import Rescue, RescueState
from otel_torchdist.node.job.requests.commands import RescueRequest, requested_rescue
from otel_torchdist.system.this_process.abandoned_calls import BACKGROUND_CALLS

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder

_logger = logging.getLogger("otel_torchdist")

BEATS_BEFORE_CHECK: Final = 5
"""Seconds until the check for the rescue function: the training script itself may define it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRank:
    """The argument of a rescue function. The function is called in each responsive rank of a stalled run.

    Attributes:
        rank: This process's global rank.
        world_size: Number of ranks of the run.
        step: Current training step of this rank, as in spans: counted from 0 in each attempt. No optimizer is in the
            middle of its step.
        run: Id of the run, 32 hexadecimal digits.
        verdict: Kind of the verdict: `absent`, `dead`, `mismatched`, …; docs/verdicts.md lists them.
        ranks: The global ranks that the verdict names, ascending, such as `2,5-7`; '' if it names none.
        text: The whole verdict as a sentence.
        timeout: Maximum seconds for the rescue. A later result does not count.
        directory: A directory on this node for the saved state. It may not exist yet.
    """

    rank: int
    world_size: int
    step: int
    run: str
    verdict: str
    ranks: str
    text: str
    timeout: float
    directory: Path


@dataclass(frozen=True, slots=True)
class RescuePlan:
    """The settings of a rescue.

    Attributes:
        target: The function, as `module:function`.
        timeout_s: Maximum time of a rescue.
        directory: Value of `StalledRank.directory`.
    """

    target: str
    timeout_s: float
    directory: Path


class Rescuer:
    """Rescuer of this rank, on request, once for each stall."""

    def __init__(self, plan: RescuePlan, recorder: Callable[[], Recorder | None]) -> None:
        """Initialize without a rescue.

        Args:
            plan: The settings.
            recorder: Returns the current recorder, or None.
        """
        self._plan = plan
        self._recorder = recorder
        self._beats = 0
        self._rescued_stalls: set[tuple[int, str]] = set()
        self._running: _RunningRescue | None = None

    def beat(self) -> None:
        """Start a requested rescue, and check the running one. Called once a second on the rank thread."""
        self._beats += 1
        if self._beats == BEATS_BEFORE_CHECK:
            _warn_if_missing(self._plan.target)
        running = self._running
        if running is not None:
            running.end_if_late()
        recorder = self._recorder()
        request = requested_rescue(recorder.tape.path) if recorder is not None else None
        if recorder is None or request is None:
            return
        stall = (recorder.tape.identity.nonce, request.trace_id)
        if stall not in self._rescued_stalls:
            self._rescued_stalls.add(stall)
            self._running = _RunningRescue(self._plan, recorder, request)


class _RunningRescue:
    """A rescue, on a separate thread."""

    def __init__(self, plan: RescuePlan, recorder: Recorder, request: RescueRequest) -> None:
        self._plan = plan
        self._recorder = recorder
        self._request = request
        self._step = recorder.step
        self._state = RescueState.NONE
        self._lock = threading.Lock()
        self._due = time.monotonic() + plan.timeout_s
        self._set(RescueState.RUNNING)
        threading.Thread(target=self._run, name="otel-torchdist-rescue", daemon=True).start()

    def end_if_late(self) -> None:
        """Mark the rescue as too late after the timeout. Its thread continues: Python cannot end it."""
        if time.monotonic() > self._due and self._set(RescueState.TOO_LATE):
            _logger.error("the rescue of this rank took longer than %g s and does not count", self._plan.timeout_s)

    def _set(self, state: RescueState, step: int | None = None) -> bool:
        """Publish a state, unless a final state was published. Return whether it was published."""
        with self._lock:
            if self._state.is_final:
                return False
            self._state = state
            self._recorder.tape.set_rescue(Rescue(state, self._step if step is None else step))
        return True

    def _run(self) -> None:
        try:
            self._rescue()
        except BaseException as error:  # including SystemExit, which would end this thread silently
            _logger.error("the rescue of this rank failed", exc_info=error)
            self._set(RescueState.RAISED)

    def _rescue(self) -> None:
        if _is_in_optimizer():
            _logger.error("this rank is not rescued: it is in the step of an optimizer, half of its parameters updated")
            self._set(RescueState.IN_OPTIMIZER)
            return
        module, _, name = self._plan.target.partition(":")
        function: Callable[[StalledRank], object] = getattr(importlib.import_module(module), name)
        with BACKGROUND_CALLS:
            returned = function(self._stalled_rank())
        if _is_in_optimizer() or self._recorder.step != self._step:
            _logger.error("the rescue of this rank does not count: the rank continued meanwhile")
            self._set(RescueState.WENT_ON)
            return
        step = returned if isinstance(returned, int) and not isinstance(returned, bool) else self._step
        if self._set(RescueState.SAVED, step):
            _logger.warning("this rank has been rescued at step %d", step)

    def _stalled_rank(self) -> StalledRank:
        request, identity = self._request, self._recorder.tape.identity
        return StalledRank(
            rank=identity.rank,
            world_size=identity.world_size,
            step=self._step,
            run=request.run,
            verdict=request.verdict,
            ranks=request.ranks,
            text=request.text,
            timeout=self._plan.timeout_s,
            directory=self._plan.directory,
        )


def _is_in_optimizer() -> bool:
    """Return whether any thread is in the step of an optimizer."""
    return any(map(is_within_step, next(frames_by_thread()).values()))


def _warn_if_missing(target: str) -> None:
    """Warn early about a function that does not exist. Imports nothing."""
    module, _, name = target.partition(":")
    loaded = sys.modules.get(module)
    try:
        exists = hasattr(loaded, name) if loaded is not None else importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        exists = False
    if not exists:
        _logger.warning(
            "%s: rescue:%s cannot be found in process %d, so this rank would not be rescued",
            OTEL_PYTHON_TORCHDIST_ON_STALL, target, os.getpid(),
        )  # fmt: skip
