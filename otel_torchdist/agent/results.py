"""Writes an agent's results into job directories for later readers: findings, and verdicts on runs of several nodes."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from otel_torchdist.judge.stall.events import OngoingStall, Ruling
from otel_torchdist.model.reports.finding import Finding, FindingOver
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.node.job.kept_results import MAX_FINDING_TEXT as MAX_TEXT
from otel_torchdist.node.job.kept_results import (
    AgentsVerdict,
    KeptFinding,
    read_kept_findings,
    remove_agents_verdict,
    write_agents_verdict,
    write_kept_findings,
)
from otel_torchdist.node.job.runs.lives import is_running
from otel_torchdist.tape.reading.reader import TapeReader

# --- verdicts ---------------------------------------------------------------------------------------------------------
# Records verdicts on runs with ranks on other nodes: the tapes of one node alone do not show them.


_logger = logging.getLogger("otel_torchdist")


class AgentsVerdicts:
    """The verdict files that this process has written, kept up to date."""

    def __init__(self) -> None:
        self._written: dict[tuple[Path, int], tuple[str, frozenset[int]]] = {}

    def update(self, ongoing: Iterable[OngoingStall], tapes: Sequence[TapeReader]) -> None:
        """Write the verdicts on ongoing stalls, and remove those on stalls that are over.

        Args:
            ongoing: The ongoing stalls.
            tapes: Tapes of jobs that belong to this process's user.
        """
        by_nonce = {tape.identity.nonce: tape for tape in tapes}
        reported: set[tuple[Path, int]] = set()
        for stall in ongoing:
            local = [by_nonce[nonce] for nonce in stall.nonces if nonce in by_nonce]
            if local and len(local) < local[0].identity.world_size:
                key = local[0].path.parent, stall.ruling.incident.run
                reported.add(key)
                self._write(key, stall)
        for key in self._written.keys() - reported:
            _, nonces = self._written[key]
            # If the ranks still run, the stall is over; if they are gone, their last verdict stays.
            if all(nonce in by_nonce and is_running(by_nonce[nonce]) for nonce in nonces):
                self._remove(key)

    def _write(self, key: tuple[Path, int], stall: OngoingStall) -> None:
        content = stall.ruling.text, stall.nonces
        if self._written.get(key) == content:
            return
        self._written[key] = content
        try:
            write_agents_verdict(*key, _to_record(stall.ruling))
        except OSError as error:
            _logger.debug("%s: the verdict on a run cannot be written: %s", key[0], error)

    def _remove(self, key: tuple[Path, int]) -> None:
        del self._written[key]
        try:
            remove_agents_verdict(*key)
        except OSError as error:
            _logger.debug("%s: the verdict on a run cannot be removed: %s", key[0], error)


def _to_record(ruling: Ruling) -> AgentsVerdict:
    channel = ruling.operation_id.channel
    return AgentsVerdict(
        kind=ruling.verdict,
        ranks=ruling.ranks,
        operation=ruling.operation,
        channel=(int(channel.kind), channel.group, channel.source, channel.destination, channel.tag),
        sequence=ruling.operation_id.sequence,
        text=ruling.text,
        at_ns=time.time_ns(),
    )


# --- findings ---------------------------------------------------------------------------------------------------------
# Writes the findings on runs into their job directories, for readers after the agent's end.


class FindingsLog:
    """The lists of findings in job directories, kept up to date."""

    def __init__(self) -> None:
        self._directories: dict[int, Path] = {}

    def update(self, news: Iterable[Finding | FindingOver], tapes: Sequence[TapeReader]) -> None:
        """Write new findings, and the ends of earlier ones.

        Args:
            news: New findings and ends, in order.
            tapes: Tapes of jobs that belong to this process's user.
        """
        for finding in news:
            try:
                self._write(finding, tapes)
            except OSError as error:
                _logger.debug("a finding cannot be written: %s", error)

    def _write(self, finding: Finding | FindingOver, tapes: Sequence[TapeReader]) -> None:
        match finding:
            case Finding():
                self._add(finding, tapes)
            case FindingOver():
                self._mark_over(finding)

    def _add(self, finding: Finding, tapes: Sequence[TapeReader]) -> None:
        directories = {tape.path.parent for tape in tapes if tape.identity.nonce in finding.nonces}
        if len(directories) != 1:
            return
        [directory] = directories
        self._directories[finding.run] = directory
        ranks, text = compress_ranks(finding.ranks), finding.sentence[:MAX_TEXT]
        new = KeptFinding(finding.kind.value, ranks, finding.group, text, time.time_ns())
        kept = read_kept_findings(directory, finding.run)
        write_kept_findings(directory, finding.run, [*(earlier for earlier in kept if earlier.key != new.key), new])

    def _mark_over(self, over: FindingOver) -> None:
        directory = self._directories.get(over.run)
        if directory is None:
            return
        now_ns, key = time.time_ns(), (over.kind.value, compress_ranks(over.ranks), over.group)
        kept = read_kept_findings(directory, over.run)
        ended = [dataclasses.replace(finding, until_ns=now_ns) if finding.key == key else finding for finding in kept]
        if ended != kept:
            write_kept_findings(directory, over.run, ended)
