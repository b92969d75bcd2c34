"""The verdict: the ranks that hold an operation up, and the evidence."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from otel_torchdist.judge.verdict.circumstances import WaitBehind, checkpoint_of, waits_behind
from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.giving_up import Deadline, first_deadline
from otel_torchdist.judge.verdict.launches import LaunchFacts, address_in_use, file_left_over
from otel_torchdist.judge.verdict.machine_fault import FaultyMachine, faulty_machines
from otel_torchdist.judge.verdict.roll_call import RollCall, Standing
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.judge.world.occupations import RemoteWait, remote_wait
from otel_torchdist.judge.world.places import RankPlace, in_checkpoint, place_of
from otel_torchdist.judge.world.threads import missing_thread
from otel_torchdist.model.calls import GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import Blame, RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.occupations import SharedGroup
from otel_torchdist.model.rank_state.symptoms import Symptom
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

MAX_THREADS_CHOSEN: Final = 16
"""Maximum number of named ranks for which the thread that should enter is looked up."""


class Doubt(enum.Enum):
    """The reason why a verdict is `unknown`, or less specific than it could be."""

    SILENT = "not all ranks report"
    MEMBERS = "its members are not recorded, and all that are known have entered it"
    RECORDS_LOST = "records of it were overwritten before they were read"
    UNALIGNED = "its sequence was not counted from the group's first operation"
    ANY_SOURCE = "it takes from any source"
    NO_GROUP = "its group is not known"
    CYCLE = "they wait for each other"
    THREADS = "other threads of the ranks that are missing wait elsewhere"


@dataclass(frozen=True, slots=True)
class Link:
    """One rank of a circle.

    Attributes:
        operation_id: The operation in which it waits for the next rank.
        label: The operation's purpose; see `OperationView`.
        remote: The remote procedure call in which the rank waits, if the called function is in the operation; None if
            the rank is in it itself.
        ranks: The rank, and other ranks that wait in the same operation and are missing at the same operation.
        missing: The rank they wait for; -1 if unknown.
        call_site: Where the operation was called.
    """

    rank: int
    operation_id: OperationId
    operation: str
    group: GroupView | None
    label: str = ""
    remote: RemoteWait | None = None
    ranks: tuple[int, ...] = ()
    missing: int = -1
    call_site: CallSiteName | None = None

    @property
    def served_by(self) -> tuple[int, ...]:
        """The rank that runs the called function; empty if unknown."""
        return (self.remote.rank,) if self.remote is not None and self.remote.rank is not None else ()


@dataclass(frozen=True, slots=True)
class Sharing:
    """A group that two threads of a rank use at the same time.

    Attributes:
        ranks: The ranks on which it was seen, ascending.
        example: Two such calls on one of these ranks.
    """

    ranks: tuple[int, ...]
    example: SharedGroup


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause that holds one operation up.

    Attributes:
        operation_id: The root operation, at which the search for the cause ended.
        group: None if unknown.
        ranks: The named ranks, ascending.
        roll: The standing of each member.
        since_ns: When the first rank began to wait in the operation.
        doubt: Why the kind is `unknown`; None for other kinds.
        mismatch: The difference between the calls; None for other kinds, and for `shared_group` if the calls look
            alike.
        sharing: The threads that share the group; None for kinds other than `shared_group`.
        circle: The links of a circle: each rank waits for the next, the last for the first. Empty without a circle.
        places: The place of each reporting member; see `locate`.
        failures: By rank, the type of the exception that ended it or its call.
        exit_codes: Exit code by rank, for ranks that exited before the operation was over.
        asked: By exited rank, the signal that asked it to exit, if such signals are recorded.
        hosts: Names of hosts with agents that do not answer; empty for kinds other than `unreachable`.
        versions: Versions of those agents among them that are of another version, by host; see `WorldSnapshot`.
        first: The death that explains the others; None for kinds other than `dead`.
        node: The host, if exactly the ranks of one host are named; '' otherwise, see `locate`.
        symptoms: By rank, the recorded symptoms of its machine; see `locate`.
        machines: The machines that it blames; see `faulty_machines` and `locate`.
        behind: Waits that lead to this operation across worlds of a process; see `waits_behind` and `locate`.
        twins: By rank, the ids of several processes that claim to be that rank.
        launch: Facts about the launch; see `locate`.
        deadline: When the backend ends the wait; None if unknown, or if no rank waits any more.
    """

    kind: VerdictKind
    operation_id: OperationId
    operation: str
    group: GroupView | None
    ranks: tuple[int, ...]
    roll: RollCall
    since_ns: int
    doubt: Doubt | None = None
    mismatch: Mismatch | None = None
    circle: tuple[Link, ...] = ()
    places: Mapping[int, RankPlace] = field(default_factory=dict[int, RankPlace])
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    exit_codes: Mapping[int, int] = field(default_factory=dict[int, int])
    asked: Mapping[int, int] = field(default_factory=dict[int, int])
    hosts: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    first: FirstDeath | None = None
    node: str = ""
    symptoms: Mapping[int, tuple[Symptom, ...]] = field(default_factory=dict[int, tuple[Symptom, ...]])
    launch: LaunchFacts = field(default_factory=LaunchFacts)
    deadline: Deadline | None = None
    machines: tuple[FaultyMachine, ...] = ()
    behind: tuple[WaitBehind, ...] = ()
    twins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    sharing: Sharing | None = None

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that have entered and not left, ascending."""
        return self.roll.ranks(Standing.WAITING)

    @property
    def label(self) -> str:
        """The operation's purpose if all waiting ranks agree on it, else ''; see `OperationView`."""
        labels = {operation.label for operation in self.roll.waits.values()}
        return labels.pop() if len(labels) == 1 else ""

    @property
    def reporting(self) -> int:
        """Number of members that report: the k of `k of n`."""
        return len(self.roll.standings)

    @property
    def members(self) -> int:
        """Number of members: the n of `k of n`."""
        return len(self.roll.members)

    def age_ns(self, moment_ns: int) -> int:
        """Return the age of the first wait at a moment; if all waits were interrupted, until the last interruption."""
        ends = [operation.record.completed_ns for operation in self.roll.waits.values()]
        known = [end for end in ends if end is not None]
        end_ns = max(known) if known and len(known) == len(ends) else moment_ns
        return max(end_ns - self.since_ns, 0)

    def agrees_with(self, other: Verdict) -> bool:
        """Return whether both verdicts blame the same ranks for the same cause."""
        return self._claim() == other._claim()

    def _claim(self) -> tuple[object, ...]:
        # After a mismatch the ranks wait in different operations, so the mismatched one identifies it.
        where = self.operation_id if self.mismatch is None else self.mismatch.operation_id
        if self.sharing is not None:  # all operations of the shared group have one cause
            return self.kind, where.channel
        return self.kind, where, self.ranks, self.doubt


def verdict_at(
    kind: VerdictKind,
    roll: RollCall,
    ranks: tuple[int, ...],
    doubt: Doubt | None = None,
    mismatch: Mismatch | None = None,
    circle: tuple[Link, ...] = (),
) -> Verdict:
    """Return a verdict on the operation of a roll call, without places."""
    return Verdict(
        kind=kind,
        operation_id=roll.operation_id,
        operation=roll.operation,
        group=roll.group,
        ranks=ranks,
        roll=roll,
        since_ns=roll.since_ns,
        doubt=doubt,
        mismatch=mismatch,
        circle=circle,
    )


def locate(world: WorldSnapshot, verdict: Verdict) -> Verdict:
    """Return the verdict with the members' places, the host if it names a whole node, and the deadline."""
    members = {rank: world.ranks[rank] for rank in verdict.roll.standings}
    missing_at = _missing_at(verdict)
    places: dict[int, RankPlace] = {}
    for rank, view in members.items():
        thread = missing_thread(world, rank, missing_at[rank]) if rank in missing_at else None
        place = place_of(view, view.at(verdict.operation_id), world.taken_ns, thread)
        place = in_checkpoint(place, view, checkpoint_of(world, rank, verdict.roll), world.taken_ns)
        remote = remote_wait(world, rank, missing_at[rank].channel) if rank in missing_at else None
        if remote is not None:
            place = replace(place, remote=remote, remote_for_ns=max(world.taken_ns - remote.since_ns, 0))
        if verdict.kind is VerdictKind.UNMATCHED and rank in verdict.ranks:
            place = replace(
                place, instead=next((operation for operation in view.open if view.waits_in(operation)), None)
            )
        places[rank] = place
    failures = {rank: failure for rank, view in members.items() if (failure := _failure(view, verdict.operation_id))}
    codes = {rank: members[rank].exit_code for rank in verdict.roll.ranks(Standing.ENDED)}
    symptoms = {rank: view.symptoms for rank, view in members.items() if view.symptoms}
    return replace(
        verdict,
        places=places,
        failures=failures,
        exit_codes={rank: code for rank, code in codes.items() if code is not None},
        asked={rank: members[rank].asked_signal for rank in codes if members[rank].asked_signal},
        node=_node_of(verdict.ranks, world),
        symptoms=symptoms,
        launch=replace(
            verdict.launch,
            in_use={rank: address for rank in verdict.ranks if (address := address_in_use(_last_of(world, rank)))},
            left_over={rank: file for rank in verdict.ranks if (file := file_left_over(_last_of(world, rank)))},
            cut_off=tuple(rank for rank, view in members.items() if _was_cut_off(view, verdict.operation_id)),
        ),
        deadline=first_deadline(world, verdict.roll.waits),
        machines=faulty_machines(
            verdict.kind, verdict.ranks or sorted(members), verdict.first, verdict.since_ns, world
        ),
        behind=waits_behind(world, verdict.roll, verdict.ranks),
        twins={rank: view.twins for rank, view in members.items() if view.twins},
        circle=tuple(_located(world, link) for link in verdict.circle),
    )


def _located(world: WorldSnapshot, link: Link) -> Link:
    """Return a link with the line where its rank waits: from its stack, or the call site of the operation."""
    view = world.ranks.get(link.rank)
    operation = view.at(link.operation_id) if view is not None else None
    if view is None or operation is None or link.call_site is not None:
        return link
    return replace(link, call_site=place_of(view, operation, world.taken_ns).frame)


def _node_of(ranks: tuple[int, ...], world: WorldSnapshot) -> str:
    """Return the host of several named ranks if exactly its ranks are named and other hosts have ranks; else ''."""
    hosts = {world.ranks[rank].host if rank in world.ranks else "" for rank in ranks}
    host = hosts.pop() if len(hosts) == 1 else ""
    ranks_of_host = {rank for rank, view in world.ranks.items() if view.host == host}
    return host if len(ranks) > 1 and ranks_of_host == set(ranks) and len(ranks_of_host) < len(world.ranks) else ""


def _last_of(world: WorldSnapshot, rank: int) -> OperationView | None:
    return world.ranks[rank].last if rank in world.ranks else None


def _missing_at(verdict: Verdict) -> dict[int, OperationId]:
    """Return the operation at which each rank is missing, by rank."""
    named = verdict.ranks[:MAX_THREADS_CHOSEN]
    missing_at = {rank: verdict.operation_id for rank in named if verdict.roll.standings.get(rank) is Standing.ABSENT}
    if verdict.doubt is Doubt.THREADS:
        missing_at |= {
            after.rank: link.operation_id for link, after in zip(verdict.circle, verdict.circle[1:], strict=False)
        }
        missing_at[verdict.circle[0].rank] = verdict.circle[-1].operation_id
    return missing_at


def _was_cut_off(view: RankView, operation_id: OperationId) -> bool:
    last = view.last if operation_id.channel.kind is RecordKind.RENDEZVOUS else None
    return last is not None and last.operation_id == operation_id and last.record.blame is Blame.CONNECTION


def _failure(view: RankView, operation_id: OperationId) -> str:
    if view.failure:
        return view.failure
    progress = view.progress.get(operation_id.channel)
    return progress.failure if progress is not None and progress.failed == operation_id.sequence else ""


def urgency(verdict: Verdict) -> tuple[int, int, int, OperationId]:
    """Return the sort key of a verdict: strongest evidence first, then the longest wait."""
    # Devices that broke together are stuck in several groups, but not all of them in each.
    stuck = len(verdict.ranks) if verdict.kind is VerdictKind.STUCK else 0
    return list(VerdictKind).index(verdict.kind), -stuck, verdict.since_ns, verdict.operation_id


class Outcome(enum.Enum):
    """How an incident ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    """The operation raised."""
    RANKS_ENDED = "ranks ended"
    """All waiting ranks are gone."""
    OUT_OF_SIGHT = "out of sight"
    """Its tapes are gone, or its records were lost."""

    @property
    def ends_ranks(self) -> bool:
        """Whether waiting ranks have failed or are gone, so that the verdict explains the end of the run."""
        match self:
            case Outcome.FAILED | Outcome.RANKS_ENDED:
                return True
            case Outcome.COMPLETED | Outcome.OUT_OF_SIGHT:
                return False
