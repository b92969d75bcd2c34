"""Runs the configured actions on findings: each once per finding, at once, on a thread.

A finding stalls nothing, so there is nothing to wait for. Nodes do not report findings to each other: only the agent
that has found something acts, on the ranks of its own node.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_torchdist.actions.perform import Act, is_first, perform, report
from otel_torchdist.actions.stalled_run import StalledRun, stalled_run
from otel_torchdist.config import Action, ActionKind
from otel_torchdist.model.finding import Finding, FindingOver
from otel_torchdist.stall.reporting.attributes import of_finding
from otel_torchdist.tape.reading.reader import TapeReader

MAX_ACTED: Final = 64
"""Findings of this process on which actions run; a job that is wrong in many ways must not start a program for each."""
_PREFIX: Final = "on finding"


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
                report(_PREFIX, action.kind.value, act)
