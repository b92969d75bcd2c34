"""The cause of a stall in words: a clause for each kind of verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.roll_call import GONE, Standing
from otel_torchdist.judge.verdict.verdict import Doubt, Link, Verdict
from otel_torchdist.judge.verdict.wording.calls import (
    MAX_PARTIES,
    at_line,
    describe_creations,
    describe_divergence,
    describe_frame,
    describe_line,
    describe_mismatch,
    describe_operation,
    describe_sharing,
)
from otel_torchdist.judge.verdict.wording.ends import (
    describe_deaths,
    describe_departure,
)
from otel_torchdist.judge.verdict.wording.launches import (
    describe_failed_launch,
    describe_launch,
    describe_sizes,
    has_launch_clause,
)
from otel_torchdist.judge.verdict.wording.places import (
    describe_checkpoint,
    lone_saver,
)
from otel_torchdist.judge.world.mismatch import Field
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.operations import RAISED
from otel_torchdist.model.rank_state.lives import STOPPED_STATES
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.text import have, name_ranks

_PLURALS: Final = {"device": "devices", "process": "processes"}


def is_gone(verdict: Verdict, rank: int) -> bool:
    """Return whether a rank has ended, so that its place is described in the past tense."""
    return verdict.kind is VerdictKind.DEAD or verdict.roll.standings.get(rank) in GONE


@dataclass(frozen=True, slots=True)
class StallCause:
    """The cause of a stall in words.

    Attributes:
        text: The clause with all facts.
        short: The clause with the most important facts, used if `text` is too long; '' if it cannot be shortened.
        rest: Clauses with the facts that `short` omits.
    """

    text: str
    short: str = ""
    rest: tuple[str, ...] = ()


def cause_of(verdict: Verdict, age: str) -> StallCause:
    """Describe the cause; `age` is the age of the first wait, in words."""
    match verdict.kind:
        case VerdictKind.SHARED_GROUP:
            return _shared(verdict, age)
        case VerdictKind.MISMATCHED:
            return _mismatched(verdict, age)
        case VerdictKind.DEAD:
            return StallCause(_dead(verdict, age))
        case VerdictKind.FROZEN:
            return StallCause(_frozen(verdict, age))
        case VerdictKind.CIRCULAR:
            return _circular(verdict, age)
        case VerdictKind.UNMATCHED:
            departure = describe_departure(verdict, _operation_id(verdict), age)
            return StallCause(departure) if departure else _unmatched(verdict, age)
        case VerdictKind.ABSENT:
            return StallCause(describe_departure(verdict, _operation_id(verdict), age) or _absent(verdict, age))
        case VerdictKind.RENDEZVOUS:
            return StallCause(_rendezvous(verdict, age))
        case VerdictKind.DEVICE:
            return StallCause(_device(verdict, age))
        case VerdictKind.STUCK:
            return _stuck(verdict, age)
        case VerdictKind.TRANSPORT:
            return StallCause(_transport(verdict, age))
        case VerdictKind.UNREACHABLE:
            return _unreachable(verdict, age)
        case VerdictKind.UNKNOWN:
            return _unknown(verdict, age)


def _absent(verdict: Verdict, age: str) -> str:
    saver = lone_saver(verdict)
    if saver is not None:
        rank, doing = verdict.ranks[0], describe_checkpoint(saver)
        return f"rank {rank} is in {doing}, and has not entered {_their_side(verdict)} for {age}"
    return f"{name_ranks(verdict.ranks)} {have(verdict.ranks)} not entered {_their_side(verdict)} for {age}"


def _their_side(verdict: Verdict) -> str:
    """Describe the operation that the missing ranks should enter, from their side: a `recv` for a `send`."""
    channel = verdict.operation_id.channel
    if not channel.is_point_to_point:
        return _operation_id(verdict)
    side = "send" if verdict.ranks == (channel.source,) else "recv"
    # The label names the stage of the waiting side; the missing side is another stage.
    label = (
        f"for {verdict.operation} of {verdict.label}" if verdict.label and side != verdict.operation else verdict.label
    )
    return describe_operation(side, verdict.group, verdict.operation_id, label)


def _dead(verdict: Verdict, age: str) -> str:
    failed = describe_failed_launch(verdict, age)
    if failed:
        return failed
    if all(operation.record.how not in (None, *RAISED) for operation in verdict.roll.waits.values()):
        return f"{describe_deaths(verdict)}, after {_operation_id(verdict)}"
    return f"{describe_deaths(verdict)}, and {_operation_id(verdict)} has been blocked for {age}"


def _frozen(verdict: Verdict, age: str) -> str:
    ranks = verdict.ranks
    place = verdict.places.get(ranks[0])
    how = STOPPED_STATES.get(place.stopped if place is not None else "", "not running")
    verb = "is" if len(ranks) == 1 else "are"
    inside = all(verdict.roll.standings[rank] is Standing.WAITING for rank in ranks)
    frozen = f"{name_ranks(ranks)} {verb} frozen ({how})"
    if inside:
        return f"{frozen} inside {_operation_id(verdict)}, which has been blocked for {age}"
    return f"{frozen} and {have(ranks)} not entered {_their_side(verdict)} for {age}"


def _shared(verdict: Verdict, age: str) -> StallCause:
    assert verdict.sharing is not None
    group = verdict.group.title if verdict.group is not None else "a group"
    shared = describe_sharing(verdict.sharing.ranks, verdict.sharing.example, group)
    rest = f"which comes first is chance, and {_operation_id(verdict)} has been blocked for {age}"
    return StallCause(f"{shared}; {rest}", shared, (rest,))


def _mismatched(verdict: Verdict, age: str) -> StallCause:
    mismatch = verdict.mismatch
    assert mismatch is not None
    if mismatch.field is Field.MEMBERS:
        creations, rest = describe_creations(mismatch), f"{_operation_id(verdict)} has been blocked for {age}"
        return StallCause(f"{creations}; {rest}", creations, (rest,))
    gone = [rank for rank in verdict.roll.standings if is_gone(verdict, rank)]
    divergence = describe_divergence(mismatch, gone)
    if divergence:
        return StallCause(divergence)
    described = describe_mismatch(mismatch, verdict.group)
    return StallCause(
        f"{described}, and the operation has been blocked for {age}",
        described,
        (f"the operation has been blocked for {age}",),
    )


def _circular(verdict: Verdict, age: str) -> StallCause:
    each_other = f"{name_ranks(verdict.ranks)} have waited for each other for {age}"
    alike = {(link.operation, link.call_site, link.remote) for link in verdict.circle}
    are_messages = all(link.operation_id.channel.is_point_to_point for link in verdict.circle)
    if len(alike) != 1 or not are_messages:
        return _with_circle(verdict, each_other)
    [(operation, site, _)] = alike  # a ring: the links differ only in the rank waited for
    links = [f"rank {link.rank} for rank {link.missing}" for link in verdict.circle[:MAX_PARTIES]]
    more = len(verdict.circle) - MAX_PARTIES
    ring = f"{', '.join(links)}{f' and {more} more' if more > 0 else ''}"
    return StallCause(f"{each_other} in {operation}{at_line(site)}: {ring}")


def _with_circle(verdict: Verdict, cause: str) -> StallCause:
    """Add the links of a circle to a cause. The short clause omits labels and sequences of operations."""
    short = "; ".join(_describe_shortly(link, len(verdict.circle) > 2) for link in verdict.circle[:MAX_PARTIES])
    circle = _describe_circle(verdict)
    return StallCause(f"{cause}: {circle}", f"{cause}: {short}", (circle,))


def _describe_circle(verdict: Verdict) -> str:
    links = "; ".join(_describe_link(link) for link in verdict.circle[:MAX_PARTIES])
    more = len(verdict.circle) - MAX_PARTIES
    return f"{links}{f'; {more} more' if more > 0 else ''}"


def _describe_link(link: Link) -> str:
    ranks = link.ranks or (link.rank,)
    wait = "waits" if len(ranks) == 1 else "wait"
    return f"{name_ranks(ranks)} {wait}{_target(link)} in {describe_link(link)}{at_line(link.call_site)}"


def _describe_shortly(link: Link, has_target: bool) -> str:
    """Describe a link in few words. The awaited rank is obvious, and omitted, in a circle of two."""
    line = f" at {describe_line(link.call_site)}" if link.call_site is not None else ""
    target = _target(link) if has_target else ""
    remote = link.remote
    where = f"its call of {remote.text}" if remote is not None else f"{link.operation}{_distinction(link)}"
    return f"{name_ranks(link.ranks or (link.rank,))}{target} in {where}{line}"


def _target(link: Link) -> str:
    return f" for rank {link.missing}" if link.missing >= 0 else ""


def _distinction(link: Link) -> str:
    """Return the tag or group of a link's operation, which distinguishes it from operations of the same name."""
    channel = link.operation_id.channel
    if channel.is_point_to_point:
        return f" (tag {channel.tag})"
    return f" ({link.group.title})" if link.group is not None else ""


def describe_link(link: Link) -> str:
    """Describe the operation in which a rank of a circle waits."""
    operation = describe_operation(link.operation, link.group, link.operation_id, link.label)
    return operation if link.remote is None else f"its call of {link.remote.text}, which is in {operation}"


def _unmatched(verdict: Verdict, age: str) -> StallCause:
    ranks = verdict.ranks
    if verdict.circle:
        tags = {link.operation_id.channel.tag for link in verdict.circle}
        what = "tags" if len(tags) > 1 else "groups"
        each_other = f"{name_ranks(ranks)} have waited for each other for {age}"
        return _with_circle(verdict, f"{each_other}, and their {what} differ")
    side = "send" if ranks == (verdict.operation_id.channel.source,) else "recv"
    missing = f"{name_ranks(ranks)} {have(ranks)} no matching {side}"
    return StallCause(f"{missing} for {_operation_id(verdict)}, which has been blocked for {age}")


def _rendezvous(verdict: Verdict, age: str) -> str:
    sizes = describe_sizes(verdict)
    if sizes:
        return f"{sizes}: {_operation_id(verdict)} has been blocked for {age}"
    if has_launch_clause(verdict):
        sites = Counter(operation.call_site for operation in verdict.roll.waits.values())
        site = sites.most_common(1)[0][0]
        return describe_launch(verdict, age, describe_frame(site) if site is not None else "")
    return f"{name_ranks(verdict.ranks)} {have(verdict.ranks)} not joined {_operation_id(verdict)} for {age}"


def _device(verdict: Verdict, age: str) -> str:
    named, operation_id = name_ranks(verdict.ranks), _operation_id(verdict)
    if len(verdict.ranks) == 1:
        return f"{named} has enqueued {operation_id}, but its device has not reached it for {age}"
    return f"{named} have enqueued {operation_id}, but their devices have not reached it for {age}"


def _transport(verdict: Verdict, age: str) -> str:
    members = "both ranks" if verdict.members == 2 else f"all {verdict.members} ranks"
    return f"{members} have entered {_operation_id(verdict)}, but it has not completed after {age}"


def _stuck(verdict: Verdict, age: str) -> StallCause:
    ranks = verdict.ranks
    is_on_device = any(verdict.roll.waits[rank].record.flags & Flag.ON_DEVICE for rank in ranks)
    what = "device" if is_on_device else "process"
    if len(ranks) == 1:
        broken = f"its {what}, or its connection to them, is stuck or broken"
    else:
        broken = f"their {_PLURALS[what]}, or their connections to them, are stuck or broken"
    not_out = f"{name_ranks(ranks)} {have(ranks)} not come out of {_operation_id(verdict)} for {age}"
    short = f"{not_out}, although others have"
    return StallCause(f"{short}: {broken}", short, (broken,))


def _unreachable(verdict: Verdict, age: str) -> StallCause:
    verb = "is" if len(verdict.ranks) == 1 else "are"
    unreachable = f"{name_ranks(verdict.ranks)} {verb} unreachable"
    blocked = f"and {_operation_id(verdict)} has been blocked for {age}"
    why = _why_unreachable(verdict)
    return StallCause(f"{unreachable} ({why}), {blocked}", f"{unreachable}, {blocked}", (why,))


def _why_unreachable(verdict: Verdict) -> str:
    silent = [host for host in verdict.hosts if host not in verdict.versions]
    reasons: list[str] = []
    for version in sorted({*verdict.versions.values()}):
        hosts = sorted(host for host, other in verdict.versions.items() if other == version)
        agents = f"{_agents_on(hosts)} {'is' if len(hosts) == 1 else 'are'}"
        reasons.append(f"{agents} of another version, {version}")
    if silent:
        reasons.append(f"{_agents_on(silent)} {'does' if len(silent) == 1 else 'do'} not answer")
    return "; ".join(reasons)


def _agents_on(hosts: Sequence[str]) -> str:
    return f"the agent{'s' * (len(hosts) > 1)} on {', '.join(hosts[:MAX_PARTIES])}"


def _unknown(verdict: Verdict, age: str) -> StallCause:
    if verdict.doubt is Doubt.CYCLE:
        where = f"in {_operation_id(verdict)} and elsewhere"
        return StallCause(f"{name_ranks(verdict.ranks)} have waited for each other, {where}, for {age}")
    cause = f"{_operation_id(verdict)} has not completed after {age}"
    if verdict.doubt is None:
        return StallCause(cause)
    if verdict.doubt is Doubt.SILENT:
        return StallCause(f"{cause}, although all ranks that report have entered it")
    short = f"{cause}; which ranks are missing is unknown"
    why = verdict.doubt.value
    if verdict.doubt is Doubt.THREADS:
        why = f"{why}, {_describe_circle(verdict)}"
    return StallCause(f"{short}: {why}", short, (why,))


def _operation_id(verdict: Verdict) -> str:
    return describe_operation(verdict.operation, verdict.group, verdict.operation_id, verdict.label)
