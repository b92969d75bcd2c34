"""Records agents' verdicts on runs with ranks on other nodes, which the tapes of one node do not show."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from otel_torchdist.errors import TapeError
from otel_torchdist.job.kept_results import AgentsVerdict, remove_agents_verdict, write_agents_verdict
from otel_torchdist.job.runs.lives import life_of
from otel_torchdist.model.lives import RankLife
from otel_torchdist.stall.events import OngoingStall, Ruling
from otel_torchdist.tape.reading.reader import TapeReader

_logger = logging.getLogger("otel_torchdist")


class AgentsVerdicts:
    """Keeps the verdict files of some job directories up to date, as far as this process has written them."""

    def __init__(self) -> None:
        self._written: dict[tuple[Path, int], tuple[str, frozenset[int]]] = {}

    def update(self, ongoing: Iterable[OngoingStall], tapes: Sequence[TapeReader]) -> None:
        """Record which stalls are ongoing.

        Args:
            ongoing: The ongoing stalls.
            tapes: Tapes of jobs that belong to this process's user.
        """
        by_nonce = {tape.identity.nonce: tape for tape in tapes}
        reported: set[tuple[Path, int]] = set()
        for stall in ongoing:
            here = [by_nonce[nonce] for nonce in stall.nonces if nonce in by_nonce]
            if here and len(here) < here[0].identity.world_size:
                key = here[0].path.parent, stall.ruling.incident.run
                reported.add(key)
                self._write(key, stall)
        for key in self._written.keys() - reported:
            _, nonces = self._written[key]
            # The last verdict on ranks that are gone stays; a stall that running ranks have left is over.
            if all(_runs(by_nonce.get(nonce)) for nonce in nonces):
                self._remove(key)

    def _write(self, key: tuple[Path, int], stall: OngoingStall) -> None:
        now = stall.ruling.text, stall.nonces
        if self._written.get(key) == now:
            return
        self._written[key] = now
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


def _runs(tape: TapeReader | None) -> bool:
    try:
        return tape is not None and life_of(tape) is RankLife.RUNNING
    except TapeError:
        return False


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
