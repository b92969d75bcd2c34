"""Sorts tapes into runs, both for the watcher of live ranks and for the list of past runs.

All attempts of a job share its directory, and ranks learn the id of their run one after the other. So a tape may have
no id yet or, while its rank has only read the job's store, the id of the previous attempt. Launchers start an attempt
only when the previous one is gone: ranks that lived at the same time belong to the same attempt.

A helper is a process that a rank started and that created its own group, such as the checkpoint process of
`async_save`. Its tape contains the nonce of the rank's tape.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from otel_torchdist.model.rank_state.lives import Lifetime
from otel_torchdist.tape.identity import TapeIdentity

T = TypeVar("T", bound=Hashable)


class RunMember(NamedTuple):
    """The facts that decide to which run a tape belongs.

    Attributes:
        owner: Id of the user who owns the tape.
        directory: Its job directory.
        world_size: Number of ranks of its run.
        is_helper: Whether a rank started its writer.
        rank: Global rank.
        run: 128-bit id of its run; 0 if unknown.
        life: Lifetime of its writer.
    """

    owner: int
    directory: Path
    world_size: int
    is_helper: bool
    rank: int
    run: int
    life: Lifetime

    @property
    def key(self) -> RunKey:
        """The run of this member; members of one directory without a run id share a key."""
        return RunKey(self.owner, None if self.run else self.directory, self.run)

    def may_share_run_with(self, other: RunMember) -> bool:
        """Return whether both may be ranks of one run: owner, directory, world size and kind are equal."""
        return self[:4] == other[:4]


class RunKey(NamedTuple):
    """The key of a run.

    Attributes:
        owner: Id of the user. Part of the key, because another user could write the same run id on a tape.
        directory: Job directory if the run id is unknown; None otherwise.
        run: 128-bit id; 0 if unknown.
    """

    owner: int
    directory: Path | None
    run: int


def sort_into_runs(tapes: Mapping[T, RunMember]) -> dict[RunKey, dict[int, T]]:
    """Return for each run one tape per rank, without the leftovers of earlier attempts."""
    return {key: _by_rank(members) for key, members in _by_run(tapes).items()}


def of_living_runs(tapes: Mapping[T, RunMember]) -> list[T]:
    """Return the tapes of runs with a live rank, and of live ranks without a run id; all tapes if no rank is alive.

    The tapes left out may be leftovers of an earlier job or attempt in the same directory.
    """
    living: set[T] = set()
    for key, members in _by_run(tapes).items():
        live = {tape for tape, member in members.items() if member.life.alive}
        living |= members.keys() if live and key.run else live
    return [tape for tape in tapes if tape in living or not living]


def _by_run(tapes: Mapping[T, RunMember]) -> dict[RunKey, dict[T, RunMember]]:
    named: dict[RunKey, dict[T, RunMember]] = {}
    without_id: list[tuple[T, RunMember]] = []
    for tape, member in tapes.items():
        if member.run:
            named.setdefault(member.key, {})[tape] = member
        else:
            without_id.append((tape, member))
    unnamed: dict[RunKey, dict[T, RunMember]] = {}
    for tape, stray in sorted(without_id, key=lambda item: item[1].life.began_ns):
        key = _possible_run_of(stray, named)
        (named[key] if key is not None else unnamed.setdefault(stray.key, {}))[tape] = stray
    return named | unnamed


def _possible_run_of(stray: RunMember, runs: Mapping[RunKey, Mapping[T, RunMember]]) -> RunKey | None:
    """Return the run of a rank without a run id, if exactly one run is possible; else None."""
    possible = [key for key, members in runs.items() if _lacks(members.values(), stray)]
    return possible[0] if len(possible) == 1 else None


def _lacks(members: Iterable[RunMember], stray: RunMember) -> bool:
    """Return whether a run lacks this rank, and lived at the same time."""
    ranks = list(members)
    if not any(stray.may_share_run_with(member) for member in ranks):
        return False
    if any(member.rank == stray.rank for member in ranks):
        return False
    lives = [member.life for member in ranks]
    began_ns, seen_ns = min(life.began_ns for life in lives), max(life.seen_ns for life in lives)
    return stray.life.overlaps(Lifetime(began_ns, seen_ns, any(life.alive for life in lives)))


def _by_rank(members: Mapping[T, RunMember]) -> dict[int, T]:
    """Return one tape of each rank of a run: a live tape if there is one, else the newest."""
    kept = of_this_attempt({tape: member.life for tape, member in members.items()})
    kept.sort(key=lambda tape: (members[tape].life.alive, members[tape].life.began_ns))
    return {members[tape].rank: tape for tape in kept}


def of_this_attempt(lives: Mapping[T, Lifetime]) -> list[T]:
    """Return the ranks of the newest attempt among ranks with one run id.

    A provisional id may be the previous attempt's. The ranks of that attempt were gone before this attempt's tapes were
    created.
    """
    youngest_ns = max((life.began_ns for life in lives.values() if not life.id_is_sure), default=0)
    return [rank for rank, life in lives.items() if life.reaches(youngest_ns)]


class RunParentage(NamedTuple):
    """The facts that show whether the ranks of one run started the processes of another.

    Attributes:
        nonces: Nonces of the run's tapes.
        parents: Nonces of the tapes of the ranks that started the run's processes.
        world_size: Number of the run's ranks on all nodes.
    """

    nonces: frozenset[int]
    parents: frozenset[int]
    world_size: int

    @classmethod
    def of(cls, identities: Iterable[TapeIdentity]) -> RunParentage:
        """Return the parentage of a run, from the identities of its tapes; at least one."""
        tapes = list(identities)
        nonces, parents = {tape.nonce for tape in tapes}, {tape.parent for tape in tapes}
        return cls(frozenset(nonces), frozenset(parents - {0}), max(tape.world_size for tape in tapes))

    def was_started_by(self, other: RunParentage) -> bool:
        """Return whether ranks of `other` started this run. A run with more ranks than `other` is independent."""
        return bool(self.parents & other.nonces) and self.world_size <= other.world_size


def helped_runs(runs: Sequence[RunParentage]) -> list[int | None]:
    """Return for each run the index of the run that it helps, directly or indirectly; None if it is independent."""
    return [_helped_by(index, runs) for index in range(len(runs))]


def _helped_by(index: int, runs: Sequence[RunParentage]) -> int | None:
    helped = index
    for _ in runs:
        started_by = (other for other, run in enumerate(runs) if other != helped and runs[helped].was_started_by(run))
        parent = next(started_by, None)
        if parent is None:
            return None if helped == index else helped
        helped = parent
    return None  # a cycle, which only forged tapes can contain


def is_peer(run: int, parents_run: int | None) -> bool:
    """Return whether a process is a rank of the same run as its parent: in Lightning, rank 0 starts the other ranks.

    Args:
        run: Run id on the process's tape; 0 if unknown.
        parents_run: Run id on its parent's tape; None if there is no such tape.
    """
    return run != 0 and run == parents_run


def has_outlived_parent(helper: TapeIdentity, known: Iterable[TapeIdentity], running: Iterable[TapeIdentity]) -> bool:
    """Return whether a tape belongs to a helper whose parent process has ended, even if the parent has no tape left.

    Args:
        helper: The tape's identity.
        known: All known tapes.
        running: Tapes whose writers are alive and have not finished. A rank that recreates its groups has a new tape.
    """
    if not helper.parent:
        return False
    parents = {_process(identity) for identity in known if identity.nonce == helper.parent}
    return not any(_process(identity) in parents for identity in running)


def _process(identity: TapeIdentity) -> tuple[int, int, int, int]:
    return identity.pid, identity.pid_start_ticks, identity.pid_namespace, identity.boot_id
