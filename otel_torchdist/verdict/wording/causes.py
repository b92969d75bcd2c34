"""The first clause of a verdict's sentence: which ranks hold up what, and since when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from otel_torchdist.naming import have, name_ranks
from otel_torchdist.tape.layout import How
from otel_torchdist.verdict.model import Doubt, Link, Verdict, VerdictKind
from otel_torchdist.verdict.roll_call import Standing
from otel_torchdist.verdict.wording.fates import describe_deaths
from otel_torchdist.verdict.wording.phrases import describe_operation
from otel_torchdist.world.mismatch import Field, Mismatch
from otel_torchdist.world.model import GroupView

MAX_PARTIES: Final = 3
"""Parties of a mismatch, or ranks of a circle, that a sentence lists."""
_STOPPED: Final = {"T": "stopped by a signal", "t": "held by a debugger", "D": "in uninterruptible sleep"}


def cause_of(verdict: Verdict, age: str) -> str:
    """Describe the cause; `age` is how long the first rank has waited."""
    return _CAUSES[verdict.kind](verdict, age)


def _absent(verdict: Verdict, age: str) -> str:
    return f"{name_ranks(verdict.ranks)} {have(verdict.ranks)} not entered {_their_side(verdict)} for {age}"


def _their_side(verdict: Verdict) -> str:
    """The operation as the ranks that are missing would enter it."""
    channel = verdict.operation_id.channel
    if not channel.is_point_to_point:
        return _operation_id(verdict)
    side = "send" if verdict.ranks == (channel.source,) else "recv"
    return describe_operation(side, verdict.group, verdict.operation_id)


def _dead(verdict: Verdict, age: str) -> str:
    if all(operation.record.how not in (None, How.FAILED) for operation in verdict.roll.waits.values()):
        return f"{describe_deaths(verdict)}, after {_operation_id(verdict)}"
    return f"{describe_deaths(verdict)}, and {_operation_id(verdict)} has been blocked for {age}"


def _frozen(verdict: Verdict, age: str) -> str:
    ranks = verdict.ranks
    place = verdict.places.get(ranks[0])
    how = _STOPPED.get(place.stopped if place is not None else "", "not running")
    verb = "is" if len(ranks) == 1 else "are"
    inside = all(verdict.roll.standings[rank] is Standing.WAITING for rank in ranks)
    frozen = f"{name_ranks(ranks)} {verb} frozen ({how})"
    if inside:
        return f"{frozen} inside {_operation_id(verdict)}, which has been blocked for {age}"
    return f"{frozen} and {have(ranks)} not entered {_their_side(verdict)} for {age}"


def _mismatched(verdict: Verdict, age: str) -> str:
    mismatch = verdict.mismatch
    assert mismatch is not None
    return f"{describe_mismatch(mismatch, verdict.group)}, and the operation has been blocked for {age}"


def describe_mismatch(mismatch: Mismatch, group: GroupView | None) -> str:
    """Which ranks made which call, the minority first."""
    operation_id = describe_operation(mismatch.operation, group, mismatch.operation_id)
    if not mismatch.has_majority:
        parties = ", ".join(_describe_party(ranks, text) for text, ranks in mismatch.parties[:MAX_PARTIES])
        return f"ranks disagree on the {mismatch.field.value} of {operation_id}: {parties}"
    (majority, many), *others = mismatch.parties
    if mismatch.field is Field.OPERATION:
        parties = ", ".join(_describe_party(ranks, f"entered {text}") for text, ranks in others[:MAX_PARTIES])
        return f"{parties} where {_describe_party(many, 'entered')} {operation_id}"
    parties = ", ".join(
        _describe_party(ranks, f"{mismatch.field.value} {text}") for text, ranks in others[:MAX_PARTIES]
    )
    return f"{parties} where {_describe_party(many, majority)} in {operation_id}"


def _describe_party(ranks: tuple[int, ...], what: str) -> str:
    return f"{name_ranks(ranks)} {have(ranks)} {what}"


def _circular(verdict: Verdict, age: str) -> str:
    return f"{name_ranks(verdict.ranks)} have waited for each other for {age}: {_describe_circle(verdict)}"


def _describe_circle(verdict: Verdict) -> str:
    links = ", ".join(_describe_link(link) for link in verdict.circle[:MAX_PARTIES])
    more = len(verdict.circle) - MAX_PARTIES
    return f"{links}{f', {more} more' if more > 0 else ''}"


def _describe_link(link: Link) -> str:
    return f"rank {link.rank} in {describe_operation(link.operation, link.group, link.operation_id)}"


def _unmatched(verdict: Verdict, age: str) -> str:
    ranks = verdict.ranks
    side = "send" if ranks == (verdict.operation_id.channel.source,) else "recv"
    missing = f"{name_ranks(ranks)} {have(ranks)} no matching {side}"
    return f"{missing} for {_operation_id(verdict)}, which has been blocked for {age}"


def _rendezvous(verdict: Verdict, age: str) -> str:
    return f"{name_ranks(verdict.ranks)} {have(verdict.ranks)} not joined {_operation_id(verdict)} for {age}"


def _device(verdict: Verdict, age: str) -> str:
    named, operation_id = name_ranks(verdict.ranks), _operation_id(verdict)
    if len(verdict.ranks) == 1:
        return f"{named} has enqueued {operation_id}, but its device has not reached it for {age}"
    return f"{named} have enqueued {operation_id}, but their devices have not reached it for {age}"


def _transport(verdict: Verdict, age: str) -> str:
    members = "both ranks" if verdict.members == 2 else f"all {verdict.members} ranks"
    return f"{members} have entered {_operation_id(verdict)}, but it has not completed after {age}"


def _unreachable(verdict: Verdict, age: str) -> str:
    verb = "is" if len(verdict.ranks) == 1 else "are"
    hosts = ", ".join(verdict.hosts[:MAX_PARTIES])
    agents = f"the agent on {hosts} does" if len(verdict.hosts) == 1 else f"the agents on {hosts} do"
    return (
        f"{name_ranks(verdict.ranks)} {verb} unreachable ({agents} not answer), "
        f"and {_operation_id(verdict)} has been blocked for {age}"
    )


def _unknown(verdict: Verdict, age: str) -> str:
    if verdict.doubt is Doubt.CYCLE:
        where = f"in {_operation_id(verdict)} and elsewhere"
        return f"{name_ranks(verdict.ranks)} have waited for each other, {where}, for {age}"
    cause = f"{_operation_id(verdict)} has not completed after {age}"
    if verdict.doubt is Doubt.THREADS:
        return f"{cause}; which ranks are missing is unknown: {verdict.doubt.value}, {_describe_circle(verdict)}"
    if verdict.doubt is Doubt.SILENT:
        return f"{cause}, although all ranks that report have entered it"
    return f"{cause}; which ranks are missing is unknown: {verdict.doubt.value}" if verdict.doubt else cause


_CAUSES: Final[Mapping[VerdictKind, Callable[[Verdict, str], str]]] = {
    VerdictKind.MISMATCHED: _mismatched,
    VerdictKind.DEAD: _dead,
    VerdictKind.FROZEN: _frozen,
    VerdictKind.CIRCULAR: _circular,
    VerdictKind.UNMATCHED: _unmatched,
    VerdictKind.ABSENT: _absent,
    VerdictKind.RENDEZVOUS: _rendezvous,
    VerdictKind.DEVICE: _device,
    VerdictKind.TRANSPORT: _transport,
    VerdictKind.UNREACHABLE: _unreachable,
    VerdictKind.UNKNOWN: _unknown,
}


def _operation_id(verdict: Verdict) -> str:
    return describe_operation(verdict.operation, verdict.group, verdict.operation_id)
