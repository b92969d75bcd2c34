"""The verdict: which ranks hold an operation up, and on what evidence."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from otel_torchdist.judge.verdict.circumstances import WaitBehind, checkpoint_of, waits_behind
from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.giving_up import Deadline, first_deadline
from otel_torchdist.judge.verdict.launches import LaunchFacts, address_in_use, file_left_over
from otel_torchdist.judge.verdict.roll_call import RollCall, Standing
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.judge.world.occupations import RemoteWait, remote_wait
from otel_torchdist.judge.world.places import RankPlace, in_checkpoint, place_of
from otel_torchdist.judge.world.threads import missing_thread
from otel_torchdist.model.calls import GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import Blame, RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.occupations import SharedGroup
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.symptoms import Symptom
from otel_torchdist.model.verdict_kinds import VerdictKind

MAX_THREADS_CHOSEN: Final = 16
"""Maximum ranks of a verdict for which the thread that should have come is looked up."""


class Doubt(enum.Enum):
    """Why a verdict is `unknown`, or less specific than it could be."""

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
        rank: The rank.
        operation_id: The operation in which it waits for the next one.
        operation: The operation's name.
        group: Its group.
        label: What it is for; see `OperationView`.
        remote: The remote procedure call in which it waits, whose function is in that operation; None if it is so
            itself.
        ranks: The rank, and others that wait there for the same one and are missing at the same operation.
        missing: The rank for which they wait; -1 if that is not known.
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
        """The rank that runs the function which has been called; empty if none is known."""
        return (self.remote.rank,) if self.remote is not None and self.remote.rank is not None else ()


@dataclass(frozen=True, slots=True)
class Sharing:
    """A group that two threads of a rank use at the same time.

    Attributes:
        ranks: The ranks of which that is seen, ascending.
        example: How it is seen on one of them.
    """

    ranks: tuple[int, ...]
    example: SharedGroup


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds one operation up.

    Attributes:
        kind: What it is.
        operation_id: The operation at which the search for the cause ended.
        operation: Its name.
        group: Its group; None if it is not known.
        ranks: The ranks that the verdict names, ascending.
        roll: The standing of every member.
        since_ns: When the first rank began to wait there.
        doubt: Why it is unknown; None for other kinds.
        mismatch: What they disagree about; None for other kinds, and for `shared_group` if their calls look the same.
        sharing: Which threads share the group; None for kinds other than `shared_group`.
        circle: Which rank waits where, each for the next one and the last for the first; empty without a circle.
        places: Where the ranks are; see `locate`.
        failures: By rank, the type of the exception that ended it or its call.
        exit_codes: By rank, the code with which it exited, for ranks that did so before the operation was over.
        asked: By rank, the signal that had asked it to exit, for the same ranks, if such signals are recorded.
        hosts: Hosts whose agents do not answer; empty for kinds other than `unreachable`.
        first: The death that explains the others; None for kinds other than `dead`.
        node: The host whose ranks are named, all of them and no others; '' if there is none, see `locate`.
        symptoms: What the machines of ranks have shown, for ranks of which something is known; see `locate`.
        behind: Waits that lead to this operation through several worlds of a process; see `waits_behind` and `locate`.
        twins: By rank, the ids of several processes that claim to be that rank.
        launch: What its ranks know of the launch; see `locate`.
        deadline: When the backend ends the wait; None if it is not known, or no rank waits any more.
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
    first: FirstDeath | None = None
    node: str = ""
    symptoms: Mapping[int, tuple[Symptom, ...]] = field(default_factory=dict[int, tuple[Symptom, ...]])
    launch: LaunchFacts = field(default_factory=LaunchFacts)
    deadline: Deadline | None = None
    behind: tuple[WaitBehind, ...] = ()
    twins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    sharing: Sharing | None = None

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that have entered and not left."""
        return self.roll.ranks(Standing.WAITING)

    @property
    def label(self) -> str:
        """What the operation is for, if the ranks that wait in it agree on that; see `OperationView`."""
        labels = {operation.label for operation in self.roll.waits.values()}
        return labels.pop() if len(labels) == 1 else ""

    @property
    def reporting(self) -> int:
        """How many members report: the k of `k of n`."""
        return len(self.roll.standings)

    @property
    def members(self) -> int:
        """How many members there are: the n of `k of n`."""
        return len(self.roll.members)

    def age_ns(self, moment_ns: int) -> int:
        """How long the first rank has waited: until the moment, or until the last waiting rank was interrupted."""
        ends = [operation.record.completed_ns for operation in self.roll.waits.values()]
        known = [end for end in ends if end is not None]
        end_ns = max(known) if known and len(known) == len(ends) else moment_ns
        return max(end_ns - self.since_ns, 0)

    def agrees_with(self, other: Verdict) -> bool:
        """Whether both blame the same ranks for the same thing."""
        return self._claim() == other._claim()

    def _claim(self) -> tuple[object, ...]:
        # Ranks whose calls differ wait in different operations afterwards.
        where = self.operation_id if self.mismatch is None else self.mismatch.operation_id
        if self.sharing is not None:  # of which all operations that wait there are
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
    """A verdict on the operation of a roll call, without places."""
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
    """The verdict with the members' places, the node if it names that as a whole, and its deadline."""
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
            place = replace(place, instead=next((one for one in view.open if view.waits_in(one)), None))
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
        behind=waits_behind(world, verdict.roll, verdict.ranks),
        twins={rank: view.twins for rank, view in members.items() if view.twins},
        circle=tuple(_located(world, link) for link in verdict.circle),
    )


def _located(world: WorldSnapshot, link: Link) -> Link:
    """A link with the line in which its rank waits: where its thread stands, or where it has called the operation."""
    view = world.ranks.get(link.rank)
    operation = view.at(link.operation_id) if view is not None else None
    if view is None or operation is None or link.call_site is not None:
        return link
    return replace(link, call_site=place_of(view, operation, world.taken_ns).frame)


def _node_of(ranks: tuple[int, ...], world: WorldSnapshot) -> str:
    """The host of several ranks if it has no others that are seen, and other hosts have; else ''."""
    hosts = {world.ranks[rank].host if rank in world.ranks else "" for rank in ranks}
    host = hosts.pop() if len(hosts) == 1 else ""
    there = {rank for rank, view in world.ranks.items() if view.host == host}
    return host if len(ranks) > 1 and there == set(ranks) and len(there) < len(world.ranks) else ""


def _last_of(world: WorldSnapshot, rank: int) -> OperationView | None:
    return world.ranks[rank].last if rank in world.ranks else None


def _missing_at(verdict: Verdict) -> dict[int, OperationId]:
    """By rank, the operation at which it is missing."""
    named = verdict.ranks[:MAX_THREADS_CHOSEN]
    found = {rank: verdict.operation_id for rank in named if verdict.roll.standings.get(rank) is Standing.ABSENT}
    if verdict.doubt is Doubt.THREADS:
        found |= {
            after.rank: link.operation_id for link, after in zip(verdict.circle, verdict.circle[1:], strict=False)
        }
        found[verdict.circle[0].rank] = verdict.circle[-1].operation_id
    return found


def _was_cut_off(view: RankView, operation_id: OperationId) -> bool:
    last = view.last if operation_id.channel.kind is RecordKind.RENDEZVOUS else None
    return last is not None and last.operation_id == operation_id and last.record.blame is Blame.CONNECTION


def _failure(view: RankView, operation_id: OperationId) -> str:
    if view.failure:
        return view.failure
    progress = view.progress.get(operation_id.channel)
    return progress.failure if progress is not None and progress.failed == operation_id.sequence else ""


def urgency(verdict: Verdict) -> tuple[int, int, int, OperationId]:
    """The order of verdicts: the strongest evidence first, then the longest wait."""
    # Devices that broke together are stuck in several groups, and not all of them in each.
    stuck = len(verdict.ranks) if verdict.kind is VerdictKind.STUCK else 0
    return list(VerdictKind).index(verdict.kind), -stuck, verdict.since_ns, verdict.operation_id


class Outcome(enum.Enum):
    """How an incident ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    """The operation raised."""
    RANKS_ENDED = "ranks ended"
    """All ranks that waited are gone."""
    OUT_OF_SIGHT = "out of sight"
    """Its tapes are gone, or its records were lost."""
