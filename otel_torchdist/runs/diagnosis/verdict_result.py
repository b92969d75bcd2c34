"""The result of `diagnose` on a verdict: structs that are encoded as JSON."""

from __future__ import annotations

import msgspec

from otel_torchdist.analysis.statistics.result import CallSite, GroupRef
from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.giving_up import Deadline
from otel_torchdist.judge.verdict.verdict import Link, Sharing, Verdict
from otel_torchdist.judge.world.mismatch import Mismatch
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.node.job.kept_results import AgentsVerdict
from otel_torchdist.runs.diagnosis.moment import ReportedMoment, rounded
from otel_torchdist.runs.diagnosis.timeout_hints import timeout_hints


class MismatchParty(msgspec.Struct, frozen=True):
    """Ranks with the same value.

    Attributes:
        value: Their value.
        ranks: The ranks, ascending.
    """

    value: str
    ranks: tuple[int, ...]


class MismatchResult(msgspec.Struct, frozen=True):
    """A difference between the calls of one operation.

    Attributes:
        field: `operation`, `dtype`, `shape`, `reduce op`, `root`, `split sizes`, `dimensions`, `group name` or `group
            members`.
        sequence: Sequence of the call in question.
        parties: Ranks by value, the largest party first.
    """

    field: str
    sequence: int
    parties: tuple[MismatchParty, ...]


class CircleLink(msgspec.Struct, frozen=True):
    """A rank in a circle. Each rank waits for the next, and the last waits for the first.

    Attributes:
        rank: The rank.
        operation: The operation in which it waits.
        sequence: Sequence of that operation.
        group: Its group.
        label: The program's name for the operation.
        call: The remote procedure call that it waits for, if it waits in no operation.
        call_site: The line that called it.
        ranks: Ranks that wait in the same operation.
        waits_for: The rank that they wait for.
    """

    rank: int
    operation: str
    sequence: int
    group: GroupRef | None
    label: str | None
    call: str | None
    call_site: CallSite | None
    ranks: tuple[int, ...]
    waits_for: int | None


class SharedCall(msgspec.Struct, frozen=True):
    """A call on a group that two threads use at once.

    Attributes:
        operation: Name of the operation.
        call_site: The line that called it.
        caller: The function that its thread runs.
    """

    operation: str
    call_site: CallSite | None
    caller: str | None


class SharingResult(msgspec.Struct, frozen=True):
    """The use of one group by two threads at once.

    Attributes:
        ranks: Ranks whose threads share the group.
        calls: Two such calls.
    """

    ranks: tuple[int, ...]
    calls: tuple[SharedCall, ...]


class FirstDeathResult(msgspec.Struct, frozen=True):
    """Evidence that a death was the first.

    Attributes:
        order: `seen` by an agent, or `inferred`.
        lead_s: Time from it to the next death; null if there was none, or if unknown.
        is_silence: Whether the ranks only fell silent long before the others: they died or were stopped, or native
            code did not release their GILs.
    """

    order: str
    lead_s: float | None
    is_silence: bool


class DeadlineResult(msgspec.Struct, frozen=True):
    """The earliest timeout of the backend.

    Attributes:
        rank: The rank whose wait it ends.
        backend: Name of the backend.
        then: The backend's reaction: `raises`, `ends`, `aborts` or `nothing`.
        timeout_s: Length of the timeout.
        time: When it expires; may be in the past.
    """

    rank: int
    backend: str
    then: str
    timeout_s: float
    time: str


class VerdictResult(msgspec.Struct, frozen=True):
    """A verdict. A verdict of an agent has only `kind`, `ranks`, `operation`, `sequence`, `sentence` and `hung_s`.

    Attributes:
        kind: `shared_group`, `mismatched`, `dead`, `frozen`, `circular`, `unmatched`, `absent`, `rendezvous`, `device`,
            `stuck`, `transport` or `unknown`; an agent's may also be `unreachable`.
        ranks: The named ranks.
        waiting: The waiting ranks.
        operation: The operation in which they wait.
        sequence: Sequence of that operation.
        group: Its group.
        label: The program's name for the operation.
        since: When the first rank began to wait.
        age_s: Time since then.
        doubt: Reason why the verdict is less than certain; null if it is certain.
        reporting: Number of the group's members seen.
        members: Number of the group's members.
        sentence: The verdict in a sentence.
        mismatch: The difference between the calls, for a verdict on one.
        circle: The ranks of a circle, for a verdict on one.
        sharing: The use of one group by two threads, for a verdict on it.
        death: Evidence that a death was the first, for a verdict on it.
        hung_s: Time that the job hung before it was ended; null if it was not.
        deadline: The earliest timeout of the backend.
        hints: Sentences on PyTorch's timeout settings that matter to the verdict.
        source: `tapes`, `flight recorder`, or `agents` if ranks have no tape here and the agents of all nodes have
            reported more than these tapes show.
    """

    kind: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    operation: str
    sequence: int
    group: GroupRef | None
    label: str | None
    since: str | None
    age_s: float | None
    doubt: str | None
    reporting: int | None
    members: int | None
    sentence: str
    mismatch: MismatchResult | None
    circle: tuple[CircleLink, ...] | None
    sharing: SharingResult | None
    death: FirstDeathResult | None
    hung_s: float | None
    deadline: DeadlineResult | None
    hints: tuple[str, ...]
    source: str


def verdict_result(
    moment: ReportedMoment, verdict: Verdict, age_ns: int, text: str, source: str, hung_ns: int | None = None
) -> VerdictResult:
    """Return the result on a verdict.

    Args:
        moment: The moment of the diagnosis.
        verdict: The verdict.
        age_ns: Time that the first rank had waited.
        text: The verdict as a sentence.
        source: Its source.
        hung_ns: Time that the job hung before it was ended; None if it was not.
    """
    return VerdictResult(
        kind=verdict.kind.value,
        ranks=verdict.ranks,
        waiting=tuple(verdict.waiting),
        operation=verdict.operation,
        sequence=verdict.operation_id.sequence,
        group=group_ref(verdict.group),
        label=verdict.label or None,
        since=moment.time_of(verdict.since_ns),
        age_s=rounded(age_ns / 1e9),
        doubt=verdict.doubt.value if verdict.doubt is not None else None,
        reporting=verdict.reporting,
        members=verdict.members,
        sentence=text,
        mismatch=_mismatch(verdict.mismatch) if verdict.mismatch is not None else None,
        circle=tuple(_link(link) for link in verdict.circle) or None,
        sharing=_sharing(verdict.sharing) if verdict.sharing is not None else None,
        death=_first_death(verdict.first) if verdict.first is not None else None,
        hung_s=rounded(hung_ns / 1e9) if hung_ns is not None else None,
        deadline=_deadline(moment, verdict.deadline) if verdict.deadline is not None else None,
        hints=tuple(timeout_hints(verdict)),
        source=source,
    )


def agents_verdict_result(verdict: AgentsVerdict, named: tuple[int, ...], hung_ns: int | None) -> VerdictResult:
    """Return the result on the verdict of the agents of all nodes, naming the ranks `named`."""
    return VerdictResult(
        kind=verdict.kind,
        ranks=named,
        waiting=(),
        operation=verdict.operation,
        sequence=verdict.sequence,
        group=None,
        label=None,
        since=None,
        age_s=None,
        doubt=None,
        reporting=None,
        members=None,
        sentence=verdict.text,
        mismatch=None,
        circle=None,
        sharing=None,
        death=None,
        hung_s=rounded(hung_ns / 1e9) if hung_ns is not None else None,
        deadline=None,
        hints=(),
        source="agents",
    )


def _deadline(moment: ReportedMoment, deadline: Deadline) -> DeadlineResult:
    return DeadlineResult(
        rank=deadline.rank,
        backend=deadline.backend,
        then=deadline.at_timeout.value,
        timeout_s=rounded(deadline.timeout_ns / 1e9),
        time=moment.time_of(deadline.at_ns),
    )


def _first_death(first: FirstDeath) -> FirstDeathResult:
    lead_s = None if first.lead_ns is None else rounded(first.lead_ns / 1e9)
    return FirstDeathResult("inferred" if first.is_inferred else "seen", lead_s, first.is_silence)


def _mismatch(mismatch: Mismatch) -> MismatchResult:
    parties = tuple(MismatchParty(value, ranks) for value, ranks in mismatch.parties)
    return MismatchResult(mismatch.field.value, mismatch.operation_id.sequence, parties)


def _link(link: Link) -> CircleLink:
    return CircleLink(
        rank=link.rank,
        operation=link.operation,
        sequence=link.operation_id.sequence,
        group=group_ref(link.group),
        label=link.label or None,
        call=link.remote.text if link.remote is not None else None,
        call_site=call_site(link.call_site),
        ranks=tuple(link.ranks),
        waits_for=link.missing if link.missing >= 0 else None,
    )


def _sharing(sharing: Sharing) -> SharingResult:
    example = sharing.example
    calls = zip(example.operations, example.call_sites, example.callers, strict=True)
    return SharingResult(
        tuple(sharing.ranks),
        tuple(SharedCall(operation, call_site(site), caller or None) for operation, site, caller in calls),
    )


def group_ref(group: GroupView | None) -> GroupRef | None:
    """Convert a group to its form in results."""
    return GroupRef(group.key, group.label, len(group.members)) if group is not None else None


def call_site(frame: CallSiteName | None) -> CallSite | None:
    """Convert a line of code to its form in results."""
    return CallSite(frame.function, frame.file, frame.line) if frame is not None else None
