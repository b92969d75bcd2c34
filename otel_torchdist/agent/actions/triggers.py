"""Runs the configured actions on stalls and on findings, each once, on a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.agent.actions.dump import objection_to
from otel_torchdist.agent.actions.perform import Act, Callback, called, is_first, perform, report
from otel_torchdist.agent.actions.requests import rescue_ranks
from otel_torchdist.agent.actions.stalled_run import StalledRun, stalled_run
from otel_torchdist.config import Action, ActionKind
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_DUMP_DIR
from otel_torchdist.judge.stall.events import OngoingStall
from otel_torchdist.judge.stall.reporting.attributes import of_finding
from otel_torchdist.model.finding import Finding, FindingOver
from otel_torchdist.tape.reading.reader import TapeReader

# --- stalls -----------------------------------------------------------------------------------------------------------
# Runs the configured actions on stalls: each once per stall, after a grace period, on a thread.


_logger = logging.getLogger("otel_torchdist")

_STALL_PREFIX: Final = "on stall"

MAX_PASS_S: Final = 1.0
"""Maximum time between two passes that counts: any more is a suspension, of this process at least."""


class StallActions:
    """Watches the ongoing stalls, and starts the actions that are due."""

    def __init__(
        self,
        actions: Iterable[Action],
        grace_s: float,
        dump_dir: Path,
        callback: Callback | None = None,
        rescue_timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Configure the actions.

        Args:
            actions: What to do, in this order.
            grace_s: How long a verdict must have stood before an action starts, counting only time when the job ran.
            dump_dir: Where bundles of evidence go.
            callback: Called too, before any action.
            rescue_timeout_s: How long a rank may take to save its state.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._actions = [action for action in actions if action.kind is not ActionKind.LOG]
        self._grace_s = grace_s
        self._dump_dir = dump_dir
        if any(action.kind is ActionKind.DUMP for action in self._actions) and (objection := objection_to(dump_dir)):
            _logger.warning("%s: `dump` cannot write evidence there: %s", OTEL_PYTHON_TORCHDIST_DUMP_DIR, objection)
        self._callback = callback
        self._rescue_timeout_s = rescue_timeout_s
        self._updated_at = clock()
        self._stood_s: dict[int, float] = {}
        self._acted: set[int] = set()
        self._on: Mapping[int, OngoingStall] = {}

    def start_due(
        self, ongoing: Iterable[OngoingStall], tapes: list[TapeReader], suspended: Collection[int] = ()
    ) -> None:
        """Start the actions that are due, without waiting for them.

        Args:
            ongoing: The ongoing stalls.
            tapes: The tapes that this process reads and may act on.
            suspended: Trace ids of the stalls that do not age, because their runs are suspended.
        """
        if not self._actions and self._callback is None:
            return
        now = self._now()
        passed_s, self._updated_at = min(now - self._updated_at, MAX_PASS_S), now
        on = {stall.ruling.incident.trace_id: stall for stall in ongoing}
        before = self._stood_s
        self._stood_s = {
            trace_id: before[trace_id] + passed_s * (trace_id not in suspended) if trace_id in before else 0.0
            for trace_id in on
        }
        self._acted &= on.keys()
        self._on = on
        for trace_id, stood_s in self._stood_s.items():
            if stood_s >= self._grace_s and trace_id not in self._acted:
                self._acted.add(trace_id)
                concerned = [tape for tape in tapes if tape.identity.nonce in on[trace_id].nonces]
                self._begin(on[trace_id], concerned)

    def _begin(self, stall: OngoingStall, tapes: list[TapeReader]) -> None:
        if len({tape.path.parent for tape in tapes}) != 1:
            return  # no rank is on this node, or ranks of several jobs do not know their run yet
        ruling = stall.ruling
        stalled = stalled_run(ruling.incident, ruling.attributes, ruling.text, tapes)
        due = [action for action in self._actions if action.is_local or stall.is_ours]
        threading.Thread(
            target=self._act, args=(stalled, due, stall.is_ours), name="torchdist-on-stall", daemon=True
        ).start()

    def _act(self, stall: StalledRun, due: list[Action], is_ours: bool) -> None:
        callback = self._callback
        if callback is not None and is_ours and is_first(stall, "the-callback"):
            report(_STALL_PREFIX, "the callback", lambda: called(callback, stall))
        for position, action in enumerate(due):
            if is_first(stall, f"{position}-{action.kind.value}"):
                report(_STALL_PREFIX, action.kind.value, lambda action=action: self._do(action, stall))

    def _ongoing(self, stall: StalledRun) -> OngoingStall | None:
        return self._on.get(int(stall.trace_id, 16))

    def _do(self, action: Action, stall: StalledRun) -> str:
        if self._ongoing(stall) is None:  # earlier actions may have taken long
            return "skipped: the stall is over"
        if action.kind is ActionKind.RESCUE:
            return rescue_ranks(stall, self._rescue_timeout_s, lambda: self._ongoing(stall))
        return perform(action, stall, self._dump_dir, lambda: self._ongoing(stall) is not None)


def suspended_among(ongoing: Iterable[OngoingStall]) -> frozenset[int]:
    """Trace ids of the stalls whose runs are suspended."""
    return frozenset(stall.ruling.incident.trace_id for stall in ongoing if stall.stands_still)


def doable_here(actions: Iterable[Action], variable: str) -> list[Action]:
    """The actions that can run within a rank; the others cause one warning.

    A rank that read its own tape as a file would release the lock that shows that it is alive, and a rank that aborts
    the run would end before it is done.

    Args:
        actions: The actions.
        variable: The setting that lists them.
    """
    wanted = list(actions)
    undoable = [action.kind.value for action in wanted if action.is_local]
    if undoable:
        _logger.warning(
            "%s=%s needs an agent, but here the tapes are read by a thread of the rank: ignored",
            variable, ",".join(undoable),
        )  # fmt: skip
    return [action for action in wanted if not action.is_local]


# --- findings ---------------------------------------------------------------------------------------------------------
# Runs the configured actions on findings: each once per finding, at once, on a thread.
# A finding stalls nothing, so there is nothing to wait for. Nodes do not report findings to each other: only the agent
# that has found something acts, on the ranks of its own node.


MAX_ACTED: Final = 64
"""Findings of this process on which actions run; a job that is wrong in many ways must not start a program for each."""
_FINDING_PREFIX: Final = "on finding"


class FindingActions:
    """Starts actions on findings."""

    def __init__(self, actions: Iterable[Action], dump_dir: Path) -> None:
        """Configure the actions, which run in this order; bundles of evidence go to `dump_dir`."""
        self._actions = [action for action in actions if action.kind is not ActionKind.LOG]
        self._dump_dir = dump_dir
        self._acted = 0

    def start(self, news: Iterable[Finding | FindingOver], tapes: list[TapeReader]) -> None:
        """Start the actions on new findings, without waiting for them.

        Args:
            news: What was found, or no longer holds, since the last call.
            tapes: The tapes that this process reads and may act on.
        """
        for finding in news if self._actions else ():
            if isinstance(finding, FindingOver):
                continue
            concerned = [tape for tape in tapes if tape.identity.nonce in finding.nonces]
            if len({tape.path.parent for tape in concerned}) != 1 or self._acted >= MAX_ACTED:
                continue
            self._acted += 1
            found = stalled_run(finding.incident, of_finding(finding), finding.sentence, concerned)
            threading.Thread(target=self._act, args=(found,), name="torchdist-on-finding", daemon=True).start()

    def _act(self, found: StalledRun) -> None:
        for position, action in enumerate(self._actions):
            if is_first(found, f"{position}-{action.kind.value}"):
                act: Act = lambda action=action: perform(action, found, self._dump_dir, lambda: True)  # noqa: E731
                report(_FINDING_PREFIX, action.kind.value, act)
