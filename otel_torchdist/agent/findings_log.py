"""Writes the findings on runs into their job directories, for readers that come after the agent."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from otel_torchdist.agent.reading.stall_metrics import status_of
from otel_torchdist.job.kept_findings import MAX_TEXT, KeptFinding, read_kept_findings, write_kept_findings
from otel_torchdist.naming import compress_ranks
from otel_torchdist.semconv import IDLE, STRAGGLER
from otel_torchdist.stall.findings.events import CallsGoOn, Finding, FindingGone, IdleOver, SlowGone, StragglerGone
from otel_torchdist.tape.reading.reader import TapeReader

_logger = logging.getLogger("otel_torchdist")
_Key = tuple[str, str, str]


class FindingsLog:
    """Keeps the lists of findings in some job directories up to date."""

    def __init__(self) -> None:
        self._directories: dict[int, Path] = {}

    def update(self, news: Iterable[Finding | FindingGone], tapes: Sequence[TapeReader]) -> None:
        """Write what was found, or no longer holds.

        Args:
            news: In order.
            tapes: Tapes of jobs that belong to this process's user.
        """
        for one in news:
            try:
                self._write(one, tapes)
            except OSError as error:
                _logger.debug("a finding cannot be written: %s", error)

    def _write(self, one: Finding | FindingGone, tapes: Sequence[TapeReader]) -> None:
        now_ns = time.time_ns()
        if isinstance(one, FindingGone):
            directory = self._directories.get(one.run)
            if directory is None:
                return
            kept = read_kept_findings(directory, one.run)
            ended = [
                dataclasses.replace(before, until_ns=now_ns) if before.key == _gone(one) else before for before in kept
            ]
            if ended != kept:
                write_kept_findings(directory, one.run, ended)
            return
        nonces = {view.nonce for view in one.world.ranks.values() if not view.is_remote}
        directories = {tape.path.parent for tape in tapes if tape.identity.nonce in nonces}
        if len(directories) != 1:
            return
        status, [directory] = status_of(one), directories
        self._directories[status.run_id] = directory
        found = KeptFinding(
            status.verdict, compress_ranks(status.ranks), status.group_key, status.text[:MAX_TEXT], now_ns
        )
        kept = read_kept_findings(directory, status.run_id)
        write_kept_findings(directory, status.run_id, [*(one for one in kept if one.key != found.key), found])


def _gone(one: FindingGone) -> _Key:
    """The key of what no longer holds."""
    match one:
        case StragglerGone():
            return STRAGGLER, compress_ranks([one.rank]), one.group
        case SlowGone():
            return one.part.kind.value, compress_ranks(one.part.ranks), one.part.group
        case CallsGoOn():
            return one.calls.trouble.value, compress_ranks(one.calls.ranks), ""
        case IdleOver():
            return IDLE, compress_ranks(one.idle.ranks), ""
