"""Lists the runs on this node from their tapes. It only reads: it takes no lock, and requests or writes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError, TorchDistError
from otel_torchdist.formats import OtherFormatError
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.model.rank_state.lives import Lifetime, RankLife
from otel_torchdist.node.job.bundled import BundledCopy, read_copy
from otel_torchdist.node.job.directory import (
    base_directory,
    is_taken,
    job_directories,
    job_directory,
    substitute,
    tapes_in,
    usual_base,
)
from otel_torchdist.node.job.runs.lives import (
    exited_silently,
    has_ended_with_parent,
    life_after_exit,
    life_of,
    read_death,
)
from otel_torchdist.node.job.runs.membership import RunMember, RunParentage, helped_runs, sort_into_runs
from otel_torchdist.node.job.worlds import worlds_beside
from otel_torchdist.tape.reading.reader import TapeReader


@dataclass(frozen=True, slots=True)
class Run:
    """The part of a run on this node.

    Attributes:
        directory: Its job directory; successive runs of one launcher share it.
        run_id: 128-bit id; 0 if its ranks had not agreed on one.
        tapes: The newest tape of each rank, in ascending order of ranks; at least one.
        helps: The run whose ranks started the processes of this run, such as checkpoint processes; None if this run is
            independent.
        twins: Pids by rank, for ranks of a run without an id that several live processes claim to be.
        copy: The origin of the job directory if it is the content of a bundle; None for a live one.
    """

    directory: Path
    run_id: int
    tapes: tuple[TapeReader, ...]
    helps: Run | None = None
    twins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    copy: BundledCopy | None = None

    @property
    def place(self) -> str:
        """Path of its job directory, or of the bundle that a command has unpacked."""
        return (self.copy.place if self.copy is not None else "") or str(self.directory)

    @property
    def label(self) -> str:
        """First eight digits of the run id; '' if there is none."""
        return run_label(self.run_id)

    @property
    def begun_ns(self) -> int:
        """Wall clock time in nanoseconds at which its first tape was created."""
        return min(tape.identity.realtime_ns for tape in self.tapes)

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        return max(tape.identity.world_size for tape in self.tapes)

    @property
    def host(self) -> str:
        """Name of the node."""
        return self.tapes[0].identity.host

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks with a tape on this node, ascending."""
        return tuple(tape.identity.rank for tape in self.tapes)

    @property
    def life(self) -> RankLife:
        """State of the run: running while any rank is, else failed, dead or finished, in this order of precedence.

        Raises:
            TapeError: A tape has been damaged since it was opened.
        """
        lives = {self._life_of(tape) for tape in self.tapes}
        return min(lives, key=_precedence)

    def has_ended_with_parent(self, tape: TapeReader) -> bool:
        """Return whether a tape belongs to a helper, and the rank that started it has ended too."""
        return self.helps is not None and has_ended_with_parent(tape, (tape, *self.helps.tapes))

    def may_complete(self, other: Run) -> bool:
        """Return whether two runs without an id may be parts of one launch: they have no rank in common."""
        is_alike = not self.run_id and not other.run_id and self.world_size == other.world_size
        return is_alike and self.directory != other.directory and {*self.ranks}.isdisjoint(other.ranks)

    def _life_of(self, tape: TapeReader) -> RankLife:
        match life_of(tape):
            case RankLife.RUNNING | RankLife.FAILED as life:
                return life
            case RankLife.FINISHED:
                return life_after_exit(read_death(tape.path, tape.owner))
            case RankLife.DEAD as life:
                has_ended = exited_silently(tape, read_death(tape.path, tape.owner)) or self.has_ended_with_parent(tape)
                return RankLife.FINISHED if has_ended and not _waited(tape) else life


def _precedence(life: RankLife) -> int:
    """Return the precedence of a rank's state in the state of its run; the lowest value wins."""
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
        unreadable: A message for each unreadable tape, with path and reason.
        refused: A message for each job directory or bundle that another version has written in another format.
    """

    runs: tuple[Run, ...]
    unreadable: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def helpers_of(self, run: Run) -> list[Run]:
        """Return the runs of a run's helpers."""
        return [other for other in self.runs if other.helps is run]

    def runs_sharing_world(self, run: Run) -> list[Run]:
        """Return the other runs that share a standalone process group with this run."""
        worlds = worlds_beside(tape.path for tape in run.tapes)
        others = [other for other in self.runs if {*other.tapes}.isdisjoint(run.tapes)] if worlds else []
        return [other for other in others if worlds & worlds_beside(tape.path for tape in other.tapes)]

    def of_other_sizes(self, run: Run) -> list[Run]:
        """Return the runs in the same job directory with another world size: a rank may have a wrong `WORLD_SIZE`."""
        return [other for other in self.runs if other.directory == run.directory and other.world_size != run.world_size]

    def close(self) -> None:
        """Close all tapes."""
        for run in self.runs:
            for tape in run.tapes:
                tape.close()


def _helpers_last(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in order, but the runs of helpers after the run that they help."""
    helped = helped_runs([RunParentage.of(tape.identity for tape in run.tapes) for run in runs])
    ordered: list[Run] = []
    for index, run in enumerate(runs):
        if helped[index] is None:
            ordered.append(run)
            helpers = (helper for helper, helped_index in zip(runs, helped, strict=True) if helped_index == index)
            ordered += [dataclasses.replace(helper, helps=run) for helper in helpers]
    return ordered


def _waited(tape: TapeReader) -> bool:
    """Return whether a rank that is gone waited for an operation; opens a separate reader."""
    with contextlib.closing(TapeReader(tape.path)) as reader:
        deque(reader.poll_to_end(), maxlen=0)
        return any(operation.waiting_since_ns is not None for operation in reader.open_operations())


class SeveralRunsError(TorchDistError):
    """More than one run matches; the message lists them."""


def tape_directory(config: Config) -> Path:
    """Return the base directory of this user's tapes. It need not exist, and may be on a disk.

    Raises:
        TapeError: It is not a directory, or belongs to another user.
    """
    base = config.tape_dir
    if is_taken(base) or base.exists():
        return base_directory(base, on_disk=True)
    return (substitute(base) if base == usual_base() else None) or base


def index_of(directories: Iterable[Path]) -> RunIndex:
    """Open all tapes of these job directories, and return their runs."""
    runs: list[Run] = []
    unreadable: list[str] = []
    refused: list[str] = []
    for directory in directories:
        runs += _runs_in(directory, unreadable, refused)
    newest_first = sorted(runs, key=lambda run: run.begun_ns, reverse=True)
    return RunIndex(tuple(_helpers_last(newest_first)), (*refused, *unreadable), tuple(refused))


def may_read_any(_directory: Path) -> bool:
    """Allow every job directory."""
    return True


def other_parts(run: Run, may_read: Callable[[Path], bool] = may_read_any) -> list[Run]:
    """Return the runs on this node that may be parts of the same launch, in other job directories.

    Args:
        run: A run.
        may_read: Whether a job directory may be read.
    """
    if run.run_id or len(run.tapes) >= run.world_size:
        return []
    beside = (path for path in job_directories(run.directory.parent) if path != run.directory)
    index = index_of(path for path in beside if may_read(path))
    parts = [other for other in index.runs if other.may_complete(run)]
    for tape in (tape for other in index.runs if other not in parts for tape in other.tapes):
        tape.close()
    return parts


def whole_index(config: Config, run_dir: Path | None) -> RunIndex:
    """Return the runs of one job directory, or of all if `run_dir` is None.

    Raises:
        TapeError: The directory belongs to another user.
    """
    if run_dir is not None:
        return index_of([job_directory(run_dir.parent, run_dir.name)])
    return index_of(job_directories(tape_directory(config)))


def select(runs: Iterable[Run], prefix: str) -> Run | None:
    """Return the run whose id begins with `prefix`; None if there is none.

    Raises:
        SeveralRunsError: More than one run matches.
    """
    matches = [run for run in runs if run.run_id and f"{run.run_id:032x}".startswith(prefix.lower())]
    if len(matches) > 1:
        labels = ", ".join(f"{run.run_id:032x}"[: max(8, len(prefix) + 4)] for run in matches)
        raise SeveralRunsError(f"{len(matches)} runs begin with {prefix}: {labels}")
    return matches[0] if matches else None


def member_of(tape: TapeReader) -> RunMember:
    """Return the facts that decide to which run a tape belongs, without polling it.

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


def _runs_in(directory: Path, unreadable: list[str], refused: list[str]) -> Iterator[Run]:
    """Open the tapes of a job directory, sort them into runs, and close those that no run needs."""
    members: dict[TapeReader, RunMember] = {}
    refusals: defaultdict[str, list[Path]] = defaultdict(list)
    paths = tapes_in(directory)
    try:
        copy = read_copy(directory) if paths else None
    except OtherFormatError as error:
        refused.append(str(error))
        return
    for path in paths:
        try:
            tape = TapeReader(path)
        except OtherFormatError as error:
            refusals[error.refusal].append(path)
            continue
        except TapeError as error:
            unreadable.append(str(error))
            continue
        try:
            members[tape] = member_of(tape)
        except TapeError as error:
            tape.close()
            unreadable.append(str(error))
    for refusal, tapes in refusals.items():
        refused.append(f"{directory}: {len(tapes)} tapes in {refusal}" if len(tapes) > 1 else f"{tapes[0]}: {refusal}")
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
        yield Run(directory, key.run, tapes, twins={} if key.run else twins, copy=copy)
