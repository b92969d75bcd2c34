"""Lists the runs on this node from their tapes: nothing is locked, requested or written."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError, TorchDistError
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.model.lives import Lifetime, RankLife
from otel_torchdist.model.naming import run_label
from otel_torchdist.node.job.directory import (
    base_directory,
    is_taken,
    job_directories,
    job_directory,
    substitute,
    tapes_in,
    usual_base,
)
from otel_torchdist.node.job.runs.lives import has_ended_with_parent, has_left, life_after_exit, life_of, read_death
from otel_torchdist.node.job.runs.membership import Kin, RunMember, helped_runs, sort_into_runs
from otel_torchdist.node.job.worlds import worlds_beside
from otel_torchdist.tape.reading.reader import TapeReader


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as far as its ranks have tapes here.

    Attributes:
        directory: Its job directory; successive runs of one launcher share it.
        run_id: 128 bits; 0 when its ranks had not agreed on one.
        tapes: The newest tape of each rank, in ascending order of ranks; at least one.
        helps: The run whose ranks started the processes of this one, such as checkpoint processes; None if this is
            an independent run.
        twins: By rank, the ids of live processes that claim to be that rank of a run without an id, if several do.
    """

    directory: Path
    run_id: int
    tapes: tuple[TapeReader, ...]
    helps: Run | None = None
    twins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    @property
    def label(self) -> str:
        """The first eight digits of its id; '' while there is none."""
        return run_label(self.run_id)

    @property
    def begun_ns(self) -> int:
        """When its first tape was created, by the wall clock."""
        return min(tape.identity.realtime_ns for tape in self.tapes)

    @property
    def world_size(self) -> int:
        """How many ranks it has on all nodes."""
        return max(tape.identity.world_size for tape in self.tapes)

    @property
    def host(self) -> str:
        """The name of this node."""
        return self.tapes[0].identity.host

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a tape here, ascending."""
        return tuple(tape.identity.rank for tape in self.tapes)

    @property
    def life(self) -> RankLife:
        """What became of the run: it is running while a rank is; else the worst that became of a rank.

        Raises:
            TapeError: A tape has been damaged since it was opened.
        """
        lives = {self._life_of(tape) for tape in self.tapes}
        return min(lives, key=_weight)

    def has_ended_with_parent(self, tape: TapeReader) -> bool:
        """Whether a tape belongs to a helper that ended no sooner than the rank that started it."""
        return self.helps is not None and has_ended_with_parent(tape, (tape, *self.helps.tapes))

    def may_complete(self, other: Run) -> bool:
        """Whether two runs that know no id yet may be parts of one launch: each has ranks that the other lacks."""
        is_alike = not self.run_id and not other.run_id and self.world_size == other.world_size
        return is_alike and self.directory != other.directory and {*self.ranks}.isdisjoint(other.ranks)

    def _life_of(self, tape: TapeReader) -> RankLife:
        match life_of(tape):
            case RankLife.RUNNING | RankLife.FAILED as life:
                return life
            case RankLife.FINISHED:
                return life_after_exit(read_death(tape.path, tape.owner))
            case RankLife.DEAD as life:
                has_ended = has_left(tape, read_death(tape.path, tape.owner)) or self.has_ended_with_parent(tape)
                return RankLife.FINISHED if has_ended and not _waited(tape) else life


def _weight(life: RankLife) -> int:
    """Return the place of a rank's life among those that decide on the run's, 0 the first."""
    match life:
        case RankLife.RUNNING:
            return 0
        case RankLife.FAILED:
            return 1
        case RankLife.DEAD:
            return 2
        case RankLife.FINISHED:
            return 3


@dataclass(frozen=True, slots=True)
class RunIndex:
    """The runs of some job directories.

    Attributes:
        runs: Newest first, each followed by the runs of its helpers.
        unreadable: For each tape that cannot be read, which one and why.
    """

    runs: tuple[Run, ...]
    unreadable: tuple[str, ...]

    def helpers_of(self, run: Run) -> list[Run]:
        """Return the runs of processes that the ranks of a run have started."""
        return [other for other in self.runs if other.helps is run]

    def meeting(self, run: Run) -> list[Run]:
        """Return the other runs whose processes are in a world with processes of a run, made by hand."""
        worlds = worlds_beside(tape.path for tape in run.tapes)
        others = [other for other in self.runs if {*other.tapes}.isdisjoint(run.tapes)] if worlds else []
        return [other for other in others if worlds & worlds_beside(tape.path for tape in other.tapes)]

    def of_other_sizes(self, run: Run) -> list[Run]:
        """Return the runs in the same job directory that have another size, as where a rank was given a wrong one."""
        return [one for one in self.runs if one.directory == run.directory and one.world_size != run.world_size]

    def close(self) -> None:
        """Close all tapes."""
        for run in self.runs:
            for tape in run.tapes:
                tape.close()


def _helpers_last(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in order, but the runs of helpers after the run that they help."""
    helped = helped_runs([Kin.of(tape.identity for tape in run.tapes) for run in runs])
    ordered: list[Run] = []
    for place, run in enumerate(runs):
        if helped[place] is None:
            ordered.append(run)
            helpers = (one for one, its in zip(runs, helped, strict=True) if its == place)
            ordered += [dataclasses.replace(one, helps=run) for one in helpers]
    return ordered


def _waited(tape: TapeReader) -> bool:
    """Whether a rank that is gone waited for an operation; uses a reader of its own."""
    with contextlib.closing(TapeReader(tape.path)) as again:
        deque(again.rest(), maxlen=0)
        return any(operation.waiting_since_ns is not None for operation in again.open_operations())


class SeveralRunsError(TorchDistError):
    """More than one run matches; the message lists them."""


def tape_directory(config: Config) -> Path:
    """Return the base directory of this user's tapes, which need not exist; reading is harmless on a disk, too.

    Raises:
        TapeError: Something else is in its place, or it belongs to another user.
    """
    base = config.tape_dir
    if is_taken(base) or base.exists():
        return base_directory(base, on_disk=True)
    return (substitute(base) if base == usual_base() else None) or base


def index_of(directories: Iterable[Path]) -> RunIndex:
    """Open all tapes of these job directories."""
    runs: list[Run] = []
    unreadable: list[str] = []
    for directory in directories:
        runs += _runs_in(directory, unreadable)
    return RunIndex(tuple(_helpers_last(sorted(runs, key=lambda run: run.begun_ns, reverse=True))), tuple(unreadable))


def other_parts(run: Run) -> list[Run]:
    """Return the runs on this node that may be parts of the same launch, in other job directories."""
    if run.run_id or len(run.tapes) >= run.world_size:
        return []
    index = index_of(path for path in job_directories(run.directory.parent) if path != run.directory)
    found = [other for other in index.runs if other.may_complete(run)]
    for tape in (tape for other in index.runs if other not in found for tape in other.tapes):
        tape.close()
    return found


def whole_index(config: Config, run_dir: Path | None) -> RunIndex:
    """Index the runs of one job directory, or of all.

    Raises:
        TapeError: The directory belongs to another user.
    """
    if run_dir is not None:
        return index_of([job_directory(run_dir.parent, run_dir.name)])
    return index_of(job_directories(tape_directory(config)))


def select(runs: Iterable[Run], prefix: str) -> Run | None:
    """Return the run whose id begins with `prefix`; None when none does.

    Raises:
        SeveralRunsError: More than one does.
    """
    found = [run for run in runs if run.run_id and f"{run.run_id:032x}".startswith(prefix.lower())]
    if len(found) > 1:
        labels = ", ".join(f"{run.run_id:032x}"[: max(8, len(prefix) + 4)] for run in found)
        raise SeveralRunsError(f"{len(found)} runs begin with {prefix}: {labels}")
    return found[0] if found else None


def member_of(tape: TapeReader) -> RunMember:
    """Return what decides to which run a tape belongs, without polling it.

    Raises:
        TapeError: The tape is damaged.
    """
    alive, identity, status = tape.is_alive(), tape.identity, tape.status()
    death = None if alive else read_death(tape.path, tape.owner)
    life = Lifetime(
        began_ns=identity.monotonic_ns,
        seen_ns=max(status.heartbeat_ns, death.at_ns if death is not None else 0),
        alive=alive,
        id_is_sure=status.run_id_state is not RunIdState.PROVISIONAL,
    )
    is_helper, directory = bool(identity.parent), tape.path.parent
    return RunMember(tape.owner, directory, identity.world_size, is_helper, identity.rank, status.run_id, life)


def _runs_in(directory: Path, unreadable: list[str]) -> Iterator[Run]:
    """Open the tapes of a job directory, sort them into runs, and close those that no run needs."""
    members: dict[TapeReader, RunMember] = {}
    for path in tapes_in(directory):
        try:
            tape = TapeReader(path)
        except TapeError as error:
            unreadable.append(str(error))
            continue
        try:
            members[tape] = member_of(tape)
        except TapeError as error:
            tape.close()
            unreadable.append(str(error))
    runs = sort_into_runs(members)
    kept = {tape for ranks in runs.values() for tape in ranks.values()}
    claims: dict[int, set[int]] = {}
    for tape, member in members.items():
        if not member.run and member.life.alive:
            claims.setdefault(member.rank, set()).add(tape.identity.pid)
    twins = {rank: tuple(sorted(pids)) for rank, pids in claims.items() if len(pids) > 1}
    for tape in members.keys() - kept:
        tape.close()
    for key, ranks in runs.items():
        tapes = tuple(ranks[rank] for rank in sorted(ranks))
        yield Run(directory, key.run, tapes, twins={} if key.run else twins)
