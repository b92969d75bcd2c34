"""Writes the findings on runs into their job directories, for readers that come after the agent."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from otel_torchdist.job.kept_results import MAX_FINDING_TEXT as MAX_TEXT
from otel_torchdist.job.kept_results import KeptFinding, read_kept_findings, write_kept_findings
from otel_torchdist.model.finding import Finding, FindingOver
from otel_torchdist.naming import compress_ranks
from otel_torchdist.tape.reading.reader import TapeReader

_logger = logging.getLogger("otel_torchdist")


class FindingsLog:
    """Keeps the lists of findings in some job directories up to date."""

    def __init__(self) -> None:
        self._directories: dict[int, Path] = {}

    def update(self, news: Iterable[Finding | FindingOver], tapes: Sequence[TapeReader]) -> None:
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

    def _write(self, one: Finding | FindingOver, tapes: Sequence[TapeReader]) -> None:
        match one:
            case Finding():
                self._begin(one, tapes)
            case FindingOver():
                self._end(one)

    def _begin(self, finding: Finding, tapes: Sequence[TapeReader]) -> None:
        directories = {tape.path.parent for tape in tapes if tape.identity.nonce in finding.nonces}
        if len(directories) != 1:
            return
        [directory] = directories
        self._directories[finding.run] = directory
        ranks, text = compress_ranks(finding.ranks), finding.sentence[:MAX_TEXT]
        found = KeptFinding(finding.kind.value, ranks, finding.group, text, time.time_ns())
        kept = read_kept_findings(directory, finding.run)
        write_kept_findings(directory, finding.run, [*(one for one in kept if one.key != found.key), found])

    def _end(self, over: FindingOver) -> None:
        directory = self._directories.get(over.run)
        if directory is None:
            return
        now_ns, key = time.time_ns(), (over.kind.value, compress_ranks(over.ranks), over.group)
        kept = read_kept_findings(directory, over.run)
        ended = [dataclasses.replace(one, until_ns=now_ns) if one.key == key else one for one in kept]
        if ended != kept:
            write_kept_findings(directory, over.run, ended)
