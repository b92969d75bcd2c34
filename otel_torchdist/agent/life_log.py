"""Logs when ranks are found and how they end."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.errors import TapeError
from otel_torchdist.job.runs.lives import is_helper, read_death, run_of
from otel_torchdist.model.lives import RankLife
from otel_torchdist.naming import name_ranks, run_label
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.reading.reader import TapeReader

_logger = logging.getLogger("otel_torchdist")


def _words(life: RankLife, several: bool) -> str:
    match life:
        case RankLife.RUNNING:
            return "are running" if several else "is running"
        case RankLife.FINISHED:
            return "have ended" if several else "has ended"
        case RankLife.FAILED:
            return "have failed" if several else "has failed"
        case RankLife.DEAD:
            return "are dead: their processes are gone" if several else "is dead: its process is gone"


class LifeLog:
    """Logs which ranks are found, end, fail or die; ranks with the same fate share a line."""

    def __init__(self, reader: Reader) -> None:
        """Follow the tapes of a reader."""
        self._reader = reader
        self._lives: dict[int, RankLife] = {}
        self._newest: dict[int, TapeIdentity] = {}

    @property
    def latest(self) -> list[RankLife]:
        """Last known state of each rank, without helpers; of a restarted rank, that of its last attempt."""
        return [self._lives[identity.nonce] for identity in self._newest.values()]

    def update(self) -> None:
        """Check again, and log what is new."""
        found: list[TapeReader] = []
        ended: dict[tuple[RankLife, str, bool, Path], list[int]] = {}
        for tape in self._reader.tapes:
            try:
                life = self._reader.life_of(tape)
                failure = tape.names.text(tape.status().failure) or ""
            except TapeError:
                continue  # the reader warns of it
            before, helps = self._lives.get(tape.identity.nonce), is_helper(tape, self._reader.tapes)
            if before is None:
                found.append(tape)
                if not helps:
                    self._remember(tape.identity)
            if life is not before and life is not RankLife.RUNNING:
                if life is RankLife.FAILED and not failure:
                    failure = _exit_code(tape)
                ended.setdefault((life, failure, helps, tape.path.parent), []).append(tape.identity.rank)
            self._lives[tape.identity.nonce] = life
        _log_found(found, self._reader.tapes)
        is_one_job = len({tape.path.parent for tape in self._reader.tapes}) < 2
        for (life, failure, helps, directory), ranks in ended.items():
            several = len(set(ranks)) > 1
            reason, where = f" with {failure}" if failure else "", "" if is_one_job else f", in {directory}"
            _logger.info("%s %s%s%s", _named(ranks, helps), _words(life, several), reason, where)

    def _remember(self, identity: TapeIdentity) -> None:
        newest = self._newest.get(identity.rank, identity)
        if newest.monotonic_ns <= identity.monotonic_ns:
            self._newest[identity.rank] = identity


def _exit_code(tape: TapeReader) -> str:
    death = read_death(tape.path, tape.owner)
    return f"exit code {death.exit_code}" if death is not None and death.exited_in_error else ""


def _log_found(found: list[TapeReader], tapes: list[TapeReader]) -> None:
    runs: dict[tuple[str, int, str, bool, Path], set[int]] = {}
    for tape in found:
        identity, helps = tape.identity, is_helper(tape, tapes)
        of = run_label(run_of(tape)), identity.world_size, identity.host, helps, tape.path.parent
        runs.setdefault(of, set()).add(identity.rank)
    for (run, world_size, host, helps, _), ranks in runs.items():
        of_run = f" in run {run}" if run else ""
        _logger.info("found %s of %d%s on %s", _named(ranks, helps), world_size, of_run, host)


def _named(ranks: Collection[int], helps: bool) -> str:
    named = name_ranks(sorted(set(ranks)))
    if not helps:
        return named
    return f"the helper process{'es' * (len(set(ranks)) > 1)} of {named}"
