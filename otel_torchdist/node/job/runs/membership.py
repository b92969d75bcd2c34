"""Which tapes make a run: decided here for the watcher of live ranks and for the list of past runs alike.

Attempts of a job share its directory, and ranks learn the id of their run one after the other. So a tape may lack an id
or, while its rank has only read the job's store, have that of the attempt before. Launchers start an attempt only when
the previous one is gone: ranks that lived at the same time are of the same attempt.

A helper is a process that a rank started and that created a group of its own, such as the checkpoint process of
`async_save`. Its tape names the rank's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from otel_torchdist.model.lives import Lifetime
from otel_torchdist.tape.identity import TapeIdentity

T = TypeVar("T", bound=Hashable)


class RunMember(NamedTuple):
    """What decides to which run a tape belongs.

    Attributes:
        owner: Id of the user that the tape belongs to.
        directory: Its job directory.
        world_size: How many ranks its run has.
        is_helper: Whether its writer was started by a rank.
        rank: Global rank.
        run: 128-bit id of its run; 0 until known.
        life: When it lived.
    """

    owner: int
    directory: Path
    world_size: int
    is_helper: bool
    rank: int
    run: int
    life: Lifetime

    @property
    def key(self) -> RunMembership:
        """The run that it names; while it names none, that of all such ranks in its directory."""
        return RunMembership(self.owner, None if self.run else self.directory, self.run)

    def is_of_the_job_of(self, other: RunMember) -> bool:
        """Whether both may be ranks of one run, judging by what ranks know before they know their run."""
        return self[:4] == other[:4]


class RunMembership(NamedTuple):
    """What the ranks of one run share.

    Attributes:
        owner: Their user; anyone who has learned the id of someone else's run can write it on tapes of their own.
        directory: Their job directory if they do not know their run; None otherwise.
        run: 128-bit id; 0 if they do not know it.
    """

    owner: int
    directory: Path | None
    run: int


def sort_into_runs(tapes: Mapping[T, RunMember]) -> dict[RunMembership, dict[int, T]]:
    """Return the tapes of each run by rank: one of each, without those that an earlier attempt has left."""
    return {key: _one_of_each_rank(members) for key, members in _by_run(tapes).items()}


def of_living_runs(tapes: Mapping[T, RunMember]) -> list[T]:
    """Return the tapes of runs with a live rank, and of live ranks that know no run; all if no rank is alive.

    A directory may hold leftovers of an earlier job or attempt.
    """
    found: set[T] = set()
    for key, members in _by_run(tapes).items():
        live = {tape for tape, member in members.items() if member.life.alive}
        found |= members.keys() if live and key.run else live
    return [tape for tape in tapes if tape in found or not found]


def _by_run(tapes: Mapping[T, RunMember]) -> dict[RunMembership, dict[T, RunMember]]:
    named: dict[RunMembership, dict[T, RunMember]] = {}
    strays: list[tuple[T, RunMember]] = []
    for tape, member in tapes.items():
        if member.run:
            named.setdefault(member.key, {})[tape] = member
        else:
            strays.append((tape, member))
    nameless: dict[RunMembership, dict[T, RunMember]] = {}
    for tape, stray in sorted(strays, key=lambda one: one[1].life.began_ns):
        home = _home_of(stray, named)
        (named[home] if home is not None else nameless.setdefault(stray.key, {}))[tape] = stray
    return named | nameless


def _home_of(stray: RunMember, runs: Mapping[RunMembership, Mapping[T, RunMember]]) -> RunMembership | None:
    """Return the run of a rank that does not know it, or ended before it did: the only one that it can be of."""
    found = [key for key, members in runs.items() if _lacks(members.values(), stray)]
    return found[0] if len(found) == 1 else None


def _lacks(members: Iterable[RunMember], stray: RunMember) -> bool:
    """Whether a rank lived at the same time as a run of its job that has no other tape of this rank."""
    known = list(members)
    if not any(stray.is_of_the_job_of(member) for member in known) or any(one.rank == stray.rank for one in known):
        return False
    lives = [member.life for member in known]
    began_ns, seen_ns = min(life.began_ns for life in lives), max(life.seen_ns for life in lives)
    return stray.life.overlaps(Lifetime(began_ns, seen_ns, any(life.alive for life in lives)))


def _one_of_each_rank(members: Mapping[T, RunMember]) -> dict[int, T]:
    """Return the tapes of one run by rank; a live one counts before others, then the newest."""
    kept = of_this_attempt({tape: member.life for tape, member in members.items()})
    kept.sort(key=lambda tape: (members[tape].life.alive, members[tape].life.began_ns))
    return {members[tape].rank: tape for tape in kept}


def of_this_attempt(lives: Mapping[T, Lifetime]) -> list[T]:
    """Return the ranks with the same run id, without those of an earlier attempt.

    An id that is not agreed on yet may be that of the previous attempt, whose ranks were gone before this attempt's
    tapes were created.
    """
    youngest_ns = max((life.began_ns for life in lives.values() if not life.id_is_sure), default=0)
    return [rank for rank, life in lives.items() if life.reaches(youngest_ns)]


class Kin(NamedTuple):
    """What shows whether a run's processes were started by the ranks of another.

    Attributes:
        nonces: Nonces of its tapes.
        parents: Nonces of the tapes of the ranks that started its processes.
        world_size: How many ranks it has on all nodes.
    """

    nonces: frozenset[int]
    parents: frozenset[int]
    world_size: int

    @classmethod
    def of(cls, identities: Iterable[TapeIdentity]) -> Kin:
        """Return what the identities of a run's tapes show; at least one."""
        known = list(identities)
        nonces, parents = {one.nonce for one in known}, {one.parent for one in known}
        return cls(frozenset(nonces), frozenset(parents - {0}), max(one.world_size for one in known))

    def was_started_by(self, other: Kin) -> bool:
        """Whether the other's ranks started its processes; with more ranks than that, it is a run of its own."""
        return bool(self.parents & other.nonces) and self.world_size <= other.world_size


def helped_runs(runs: Sequence[Kin]) -> list[int | None]:
    """Return for each run the place of the one that its processes help, directly or not; None if it is independent."""
    return [_helped_by(place, runs) for place in range(len(runs))]


def _helped_by(place: int, runs: Sequence[Kin]) -> int | None:
    helped = place
    for _ in runs:
        started_by = (other for other, run in enumerate(runs) if other != helped and runs[helped].was_started_by(run))
        found = next(started_by, None)
        if found is None:
            return None if helped == place else helped
        helped = found
    return None  # a cycle, which only forged tapes can show


def is_peer(run: int, parents_run: int | None) -> bool:
    """Whether a process that a rank has started is a rank of the same run, as rank 0 of Lightning starts the others.

    Args:
        run: The run of its tape; 0 if that is not known.
        parents_run: The run of its parent's tape; None without such a tape.
    """
    return run != 0 and run == parents_run


def has_outlived_parent(helper: TapeIdentity, known: Iterable[TapeIdentity], running: Iterable[TapeIdentity]) -> bool:
    """Whether a tape belongs to a helper whose parent has ended, even if nothing of the parent is left.

    Args:
        helper: The tape's identity.
        known: All known tapes.
        running: Those whose writers are alive and have not finished: a rank that recreates its groups has a new tape.
    """
    if not helper.parent:
        return False
    parents = {_process(identity) for identity in known if identity.nonce == helper.parent}
    return not any(_process(identity) in parents for identity in running)


def _process(identity: TapeIdentity) -> tuple[int, int, int, int]:
    return identity.pid, identity.pid_start_ticks, identity.pid_namespace, identity.boot_id
