"""Starts the configured actions on stalls and on findings, each once, on a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from otel_torchdist.agent.actions.dump import objection_to
from otel_torchdist.agent.actions.machine_advice import Incidents
from otel_torchdist.agent.actions.perform import Act, Callback, call, is_first, perform, report
from otel_torchdist.agent.actions.requests import rescue_ranks
from otel_torchdist.agent.actions.stalled_run import StalledRun, stalled_run, with_advice
from otel_torchdist.config import Action, ActionKind
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_DUMP_DIR
from otel_torchdist.judge.stall.events import OngoingStall
from otel_torchdist.judge.stall.reporting.attributes import of_finding
from otel_torchdist.model.reports.finding import Finding, FindingOver
from otel_torchdist.tape.reading.reader import TapeReader

# --- stalls -----------------------------------------------------------------------------------------------------------
# Starts each action once per stall, after a grace period, on a thread.


_logger = logging.getLogger("otel_torchdist")

_STALL_PREFIX: Final = "on stall"

MAX_CALL_INTERVAL_S: Final = 1.0
"""Longest time between two calls of `start_due` that counts toward the grace period.

A longer time means that this process was suspended.
"""


class StallActions:
    """The actions on stalls, and the time for which each ongoing stall has had a verdict."""

    def __init__(
        self,
        actions: Iterable[Action],
        grace_s: float,
        dump_dir: Path,
        callback: Callback | None = None,
        rescue_timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        incidents: Incidents | None = None,
    ) -> None:
        """Configure the actions.

        Args:
            actions: The actions, in the order in which they run.
            grace_s: Seconds between a verdict and the actions on it. Time during which the job was suspended does not
                count.
            dump_dir: Directory for bundles of evidence.
            callback: Called before the actions.
            rescue_timeout_s: Longest time that a rank may take to save its state.
            clock: Returns the monotonic time in seconds.
            incidents: The incidents of machines; None if they are not counted.
        """
        self._now = clock
        self._incidents = incidents
        self._actions = [action for action in actions if action.kind is not ActionKind.LOG]
        self._grace_s = grace_s
        self._dump_dir = dump_dir
        if any(action.kind is ActionKind.DUMP for action in self._actions) and (objection := objection_to(dump_dir)):
            _logger.warning("%s: `dump` cannot write evidence there: %s", OTEL_PYTHON_TORCHDIST_DUMP_DIR, objection)
        self._callback = callback
        self._rescue_timeout_s = rescue_timeout_s
        self._updated_at = clock()
        self._verdict_age_s: dict[int, float] = {}
        self._acted: set[int] = set()
        self._stalls: Mapping[int, OngoingStall] = {}

    def start_due(
        self, ongoing: Iterable[OngoingStall], tapes: list[TapeReader], suspended: Collection[int] = ()
    ) -> None:
        """Start the actions that are due, without waiting for them.

        Args:
            ongoing: The ongoing stalls.
            tapes: The tapes that this process reads and may act on.
            suspended: Trace ids of stalls whose runs are suspended; their grace period is paused.
        """
        if not self._actions and self._callback is None:
            return
        now = self._now()
        passed_s, self._updated_at = min(now - self._updated_at, MAX_CALL_INTERVAL_S), now
        by_trace = {stall.ruling.incident.trace_id: stall for stall in ongoing}
        ages_s = self._verdict_age_s
        self._verdict_age_s = {
            trace_id: ages_s[trace_id] + passed_s * (trace_id not in suspended) if trace_id in ages_s else 0.0
            for trace_id in by_trace
        }
        self._acted &= by_trace.keys()
        self._stalls = by_trace
        for trace_id, age_s in self._verdict_age_s.items():
            if age_s >= self._grace_s and trace_id not in self._acted:
                self._acted.add(trace_id)
                stall = by_trace[trace_id]
                self._start_actions(stall, [tape for tape in tapes if tape.identity.nonce in stall.nonces])

    def _start_actions(self, stall: OngoingStall, tapes: list[TapeReader]) -> None:
        if len({tape.path.parent for tape in tapes}) != 1:
            return  # no rank is on this node, or ranks of several jobs have no run id yet
        ruling = stall.ruling
        stalled = stalled_run(ruling.incident, ruling.attributes, ruling.text, tapes)
        due = [action for action in self._actions if action.is_local or stall.is_ours]
        threading.Thread(
            target=self._act, args=(stalled, due, stall.is_ours), name="torchdist-on-stall", daemon=True
        ).start()

    def _act(self, undecided: StalledRun, due: list[Action], is_ours: bool) -> None:
        stall = with_advice(undecided, self._incidents)  # on this thread: it reads files of all nodes
        callback = self._callback
        if callback is not None and is_ours and is_first(stall, "the-callback"):
            report(_STALL_PREFIX, "the callback", lambda: call(callback, stall))
        for index, action in enumerate(due):
            if is_first(stall, f"{index}-{action.kind.value}"):
                report(_STALL_PREFIX, action.kind.value, lambda action=action: self._perform(action, stall))

    def _ongoing(self, stall: StalledRun) -> OngoingStall | None:
        return self._stalls.get(int(stall.trace_id, 16))

    def _perform(self, action: Action, stall: StalledRun) -> str:
        if self._ongoing(stall) is None:  # it may have ended during an earlier action
            return "skipped: the stall is over"
        if action.kind is ActionKind.RESCUE:
            return rescue_ranks(stall, self._rescue_timeout_s, lambda: self._ongoing(stall))
        return perform(action, stall, self._dump_dir, lambda: self._ongoing(stall) is not None)


def suspended_among(ongoing: Iterable[OngoingStall]) -> frozenset[int]:
    """Return the trace ids of the stalls whose runs are suspended."""
    return frozenset(stall.ruling.incident.trace_id for stall in ongoing if stall.stands_still)


def supported_in_rank(actions: Iterable[Action], variable: str) -> list[Action]:
    """Return the actions that can run inside a rank, and warn once of the others.

    `dump` and `rescue` would read the rank's tape as a file, which releases the lock that shows that the rank is alive.
    `abort` would end the rank, and with it this thread, before the action is done.

    Args:
        actions: The actions.
        variable: The setting that lists them.
    """
    configured = list(actions)
    unsupported = [action.kind.value for action in configured if action.is_local]
    if unsupported:
        _logger.warning(
            "%s=%s needs an agent, but here the tapes are read by a thread of the rank: ignored",
            variable, ",".join(unsupported),
        )  # fmt: skip
    return [action for action in configured if not action.is_local]


# --- findings ---------------------------------------------------------------------------------------------------------
# Starts each action once per finding, without a grace period, on a thread.
# Agents do not send findings to each other: an agent acts only on its own findings, and on the ranks of its own node.


MAX_ACTED: Final = 64
"""Maximum findings of this process that start actions, so that a job with many faults does not start many programs."""
_FINDING_PREFIX: Final = "on finding"


class FindingActions:
    """The actions on findings."""

    def __init__(self, actions: Iterable[Action], dump_dir: Path) -> None:
        """Configure the actions, in the order in which they run; bundles of evidence go to `dump_dir`."""
        self._actions = [action for action in actions if action.kind is not ActionKind.LOG]
        self._dump_dir = dump_dir
        self._acted = 0

    def start(self, news: Iterable[Finding | FindingOver], tapes: list[TapeReader]) -> None:
        """Start the actions on new findings, without waiting for them.

        Args:
            news: Findings, and ends of findings, since the last call.
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
            described = replace(found, occasion="finding")
            threading.Thread(target=self._act, args=(described,), name="torchdist-on-finding", daemon=True).start()

    def _act(self, finding: StalledRun) -> None:
        for index, action in enumerate(self._actions):
            if is_first(finding, f"{index}-{action.kind.value}"):
                act: Act = lambda action=action: perform(action, finding, self._dump_dir, lambda: True)  # noqa: E731
                report(_FINDING_PREFIX, action.kind.value, act)
