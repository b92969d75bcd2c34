"""Starts the configured actions on machines that verdicts blame, and counts incidents, on threads.

Evidence of a machine does not go away, so there is no grace period: a job whose GPU is lost is mostly over within
seconds. A verdict without such evidence counts once it is certain: at a death, or when its ranks have ended in it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from otel_torchdist.agent.actions.machine_advice import Incidents, NodeAction
from otel_torchdist.agent.actions.perform import Act, is_first, perform, report
from otel_torchdist.agent.actions.stalled_run import StalledRun, stalled_run, with_advice
from otel_torchdist.config import Action, ActionKind
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.stall.events import Event, IncidentResolved, VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import ruling_of
from otel_torchdist.tape.reading.reader import TapeReader

MAX_INCIDENTS: Final = 64
"""Maximum incidents of this process that start actions or are counted."""
_PREFIX: Final = "on machine"

_logger = logging.getLogger("otel_torchdist")


class MachineActions:
    """The actions on machines that verdicts blame."""

    def __init__(self, actions: Iterable[Action], dump_dir: Path, incidents: Incidents | None) -> None:
        """Configure the actions, in the order in which they run.

        Args:
            actions: The actions.
            dump_dir: Directory for bundles of evidence.
            incidents: Counts incidents; None to count none.
        """
        self._actions = [action for action in actions if action.kind is not ActionKind.LOG]
        self._dump_dir = dump_dir
        self._incidents = incidents
        self._seen: dict[str, StalledRun] = {}
        self._started: set[tuple[str, bool]] = set()

    def start(self, events: Iterable[Event], tapes: list[TapeReader]) -> None:
        """Start the actions on new verdicts of this agent, without waiting for them.

        Args:
            events: The events since the last call.
            tapes: The tapes that this process reads and may act on.
        """
        for event in events if self._actions or self._incidents is not None else ():
            if isinstance(event, VerdictGiven | IncidentResolved) and event.verdict.machines:
                blamed = self._describe(event, tapes)
                if blamed is not None:
                    self._start(event, blamed)

    def _describe(self, event: VerdictGiven | IncidentResolved, tapes: list[TapeReader]) -> StalledRun | None:
        """Return the verdict as actions receive it; None if no rank of the run is on this node and of this user."""
        trace_id = f"{event.incident.trace_id:032x}"
        nonces = {view.nonce for view in event.world.ranks.values() if not view.is_remote}
        concerned = [tape for tape in tapes if tape.identity.nonce in nonces]
        if len({tape.path.parent for tape in concerned}) == 1:
            ruling = ruling_of(event.verdict, event.incident, event.epoch, event.world.taken_ns)
            described = stalled_run(ruling.incident, ruling.attributes, ruling.text, concerned)
            self._seen[trace_id] = replace(described, occasion="machine")
        return self._seen.get(trace_id)  # its tapes may have been closed since

    def _start(self, event: VerdictGiven | IncidentResolved, blamed: StalledRun) -> None:
        is_shown = all(machine.is_shown for machine in event.verdict.machines)
        is_certain = event.verdict.kind.traits.is_final or (
            isinstance(event, IncidentResolved) and event.outcome.ends_ranks
        )
        key = (blamed.trace_id, is_shown)
        if not (is_shown or is_certain) or key in self._started or len(self._started) >= MAX_INCIDENTS:
            return
        self._started.add(key)
        hosts = [machine.host for machine in event.verdict.machines]
        threading.Thread(target=self._act, args=(blamed, hosts), name="torchdist-on-machine", daemon=True).start()

    def _act(self, blamed: StalledRun, hosts: list[str]) -> None:
        self._count(blamed, hosts)
        advised = with_advice(blamed, self._incidents)
        action = advised.machine.action
        if action is NodeAction.NONE:
            _logger.warning("%s: advice: nothing: %s", _PREFIX, advised.machine.reason)
            return
        _logger.warning("%s: advice: %s %s: %s", _PREFIX, action.value, ",".join(hosts), advised.machine.reason)
        for index, configured in enumerate(self._actions):
            if is_first(advised, f"machine-{action.value}-{index}-{configured.kind.value}"):
                act: Act = lambda configured=configured: perform(  # noqa: E731
                    configured, advised, self._dump_dir, lambda: True
                )
                report(_PREFIX, configured.kind.value, act)

    def _count(self, blamed: StalledRun, hosts: list[str]) -> None:
        incidents = self._incidents
        if incidents is None:
            return
        for host in hosts:
            try:
                incidents.add(host, blamed.run, blamed.trace_id, blamed.verdict)
            except (OSError, TapeError) as error:
                _logger.warning("%s: the incident of %s is not counted: %s", _PREFIX, host, error)
