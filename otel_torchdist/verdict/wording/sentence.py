"""A verdict in plain English: a sentence on which ranks hold up what, since when and where, and one on the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.ends import RAISED
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.lives import STOPPED_STATES
from otel_torchdist.model.names import INIT_PROCESS_GROUP, CallSiteName
from otel_torchdist.model.occupations import SharedGroup
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.naming import have, name_ranks, readable
from otel_torchdist.tape.names.reader import MAIN_THREAD
from otel_torchdist.units import seconds
from otel_torchdist.verdict.departures import is_about_failure, names_departed
from otel_torchdist.verdict.model import Doubt, Link, Verdict
from otel_torchdist.verdict.roll_call import GONE, Standing
from otel_torchdist.verdict.wording.across import describe_waits_behind
from otel_torchdist.verdict.wording.brief import compose
from otel_torchdist.verdict.wording.checkpoints import describe_checkpoint, lone_saver, shared_meeting
from otel_torchdist.verdict.wording.children import describe_child
from otel_torchdist.verdict.wording.creations import describe_creations
from otel_torchdist.verdict.wording.deadlines import describe_deadline
from otel_torchdist.verdict.wording.departures import describe_departure, describe_exit
from otel_torchdist.verdict.wording.fates import cause_states_death, describe_circumstances, describe_deaths
from otel_torchdist.verdict.wording.frames import (
    at_line,
    called_in,
    describe_frame,
    describe_line,
    describe_raised,
    describe_through,
)
from otel_torchdist.verdict.wording.launches import (
    describe_failed_launch,
    describe_file,
    describe_launch,
    describe_meeting,
    describe_sizes,
    elsewhere,
    has_own_words,
    several_processes,
    unanswered,
)
from otel_torchdist.verdict.wording.machine import describe_machine
from otel_torchdist.verdict.wording.misfits import describe_misfit
from otel_torchdist.verdict.wording.operations import describe_instead, describe_operation
from otel_torchdist.verdict.wording.remote_calls import describe_call
from otel_torchdist.verdict.wording.waiting import where_they_wait
from otel_torchdist.verdict.wording.ways import (
    common_line,
    describe_ends,
    describe_libraries,
    describe_values,
    describe_ways,
)
from otel_torchdist.world.mismatch import Field, Mismatch
from otel_torchdist.world.places import PlaceSource, RankPlace

MAX_PLACES: Final = 3
"""Ranks whose place is stated; those of the others are in the incident's trace."""
MAX_PARTIES: Final = 3
"""Parties of a mismatch, or ranks of a circle, that a sentence lists."""
_PLURALS: Final = {"device": "devices", "process": "processes"}


def sentence(verdict: Verdict, age_s: float, bound: str = "") -> str:
    """Describe which ranks hold an operation up and where they are, for how long, and how many wait.

    Args:
        verdict: The verdict with places; see `locate`.
        age_s: Seconds since the first rank began to wait.
        bound: `at least` or `up to` where the age is not known any better.
    """
    age = f"{bound} {seconds(age_s)}".lstrip()
    places = _places(verdict)
    details = [
        *_difference(verdict, age),
        *_node(verdict),
        *describe_file(verdict),
        *_creation(verdict),
        *elsewhere(verdict),
        *several_processes(verdict),
        *unanswered(verdict),
        *_endings(verdict),
        *describe_machine(verdict),
        *places[1:],
        *_coverage(verdict),
        *_deadline(verdict, verdict.since_ns + round(age_s * 1e9)),
    ]
    behind = describe_waits_behind(verdict)
    if behind:  # one sentence that leads through all worlds
        return compose(["; ".join([cause_of(verdict, age), *places[:1], *behind])], details)
    return compose([cause_of(verdict, age), *places[:1], *_crowd(verdict)], details)


def _node(verdict: Verdict) -> list[str]:
    """That a whole node is at fault, which no list of ranks says."""
    return [f"they are all ranks of {readable(verdict.node)}"] if verdict.node else []


def _crowd(verdict: Verdict) -> list[str]:
    """How many ranks wait, and whether some have left the operation."""
    has_all = verdict.kind is VerdictKind.UNMATCHED and verdict.circle
    is_circle = verdict.kind is VerdictKind.CIRCULAR or verdict.doubt is Doubt.CYCLE
    if is_circle or has_all or has_own_words(verdict):
        return []  # all do, each in its own operation, or the cause says who waits
    waiting = len(verdict.waiting)
    parts = [f"{waiting} of {verdict.members} ranks {'waits' if waiting == 1 else 'wait'}"] if waiting else []
    meeting = shared_meeting(verdict)
    if parts and meeting:
        parts = [f"{parts[0]} in stage {meeting} of the checkpoint"]
    elif parts:
        parts = [f"{parts[0]}{describe_meeting(verdict)}{where_they_wait(verdict)}"]
    out = verdict.roll.ranks(Standing.OUT)
    if out and verdict.kind.traits.is_of_transfer:
        parts.append(f"{name_ranks(out)} {have(out)} left it")
    return parts


def _difference(verdict: Verdict, age: str) -> list[str]:
    """How long the calls have been blocked that were made at different places, and in what else they differ."""
    mismatch = verdict.mismatch
    if mismatch is None or not describe_ways(mismatch) or verdict.kind is not VerdictKind.MISMATCHED:
        return []  # any other cause says itself for how long
    operation_id = describe_operation(mismatch.operation, verdict.group, mismatch.operation_id)
    blocked = f"this has blocked {operation_id} for {age}"
    return [blocked, *describe_values(mismatch), *describe_libraries(mismatch.ways)]


def _creation(verdict: Verdict) -> list[str]:
    """Where the ranks that have come create the group: that is the line that the others have skipped."""
    call_sites = [operation.call_site for _, operation in sorted(verdict.roll.waits.items())]
    frame = next((call_site for call_site in call_sites if call_site is not None), None)
    is_new_group = (
        verdict.operation_id.channel.kind is RecordKind.RENDEZVOUS and verdict.operation != INIT_PROCESS_GROUP
    )
    if not is_new_group or frame is None or verdict.circle:  # which has the lines of all
        return []
    return [f"the group is created in {describe_frame(frame)}"]


def _endings(verdict: Verdict) -> list[str]:
    """Exceptions and clean exits, which explain more than a place in the code."""
    parts: list[str] = []
    for rank in verdict.ranks[:MAX_PLACES]:
        failure = verdict.failures.get(rank)
        standing = verdict.roll.standings.get(rank)
        if standing is Standing.DEAD and verdict.first is not None and verdict.first.is_silence:
            continue
        if standing is Standing.DEAD and not cause_states_death(verdict):
            parts.append(f"rank {rank} ended with {failure}" if failure else f"the process of rank {rank} is gone")
        elif standing is Standing.ENDED:
            is_said = is_about_failure(verdict) or (verdict.kind is VerdictKind.ABSENT and names_departed(verdict))
            parts += [] if is_said else [describe_exit(verdict, rank)]
        elif failure and not cause_states_death(verdict) and not _says_what_it_raised(verdict, rank):
            parts.append(f"rank {rank} raised {failure}")
    return [*parts, *describe_circumstances(verdict)]


def _says_what_it_raised(verdict: Verdict, rank: int) -> bool:
    return rank in verdict.places and verdict.places[rank].source is PlaceSource.EXCEPTION


def _places(verdict: Verdict) -> list[str]:
    """Where the ranks are that the verdict names or, if it names none, where the first waiting rank is."""
    if verdict.kind is VerdictKind.SHARED_GROUP:
        return ["one of the two needs a group of its own"]
    if verdict.mismatch is not None and (describe_ways(verdict.mismatch) or describe_ends(verdict.mismatch)):
        return []  # the cause says where they are
    named = verdict.ranks or verdict.waiting[:1]
    said = {rank: link.call_site for link in verdict.circle for rank in (*link.ranks, *link.served_by)}
    located = [rank for rank in named[:MAX_PLACES] if rank in verdict.places]
    located = [rank for rank in located if rank not in said or _adds(verdict.places[rank], said[rank])]
    alone = len(verdict.ranks) == 1
    clauses = [_place_of(verdict, rank, "it" if alone else f"rank {rank}") for rank in located]
    if verdict.ranks and lone_saver(verdict) is None:
        savers = [(rank, describe_checkpoint(verdict.places[rank])) for rank in located]
        verbs = {rank: "was" if _is_gone(verdict, rank) else "is" for rank in located}
        texts = [f"{'it' if alone else f'rank {rank}'} {verbs[rank]} in {text}" for rank, text in savers if text]
        clauses = texts + clauses
    calls = [describe_call(verdict.places[rank], "it" if alone else f"rank {rank}") for rank in located]
    if verdict.kind is not VerdictKind.CIRCULAR:
        clauses = [*filter(None, calls), *clauses]
    return [clause for clause in clauses if clause]


def _place_of(verdict: Verdict, rank: int, subject: str) -> str:
    place, first = verdict.places[rank], verdict.first
    if first is not None and rank in first.deaths and first.deaths[rank].error:
        place = replace(place, message="")  # the cause says it
    clause = describe_place(place, subject)
    return clause.replace(" is in ", " was in ", 1) if _is_gone(verdict, rank) else clause


def _is_gone(verdict: Verdict, rank: int) -> bool:
    return verdict.kind is VerdictKind.DEAD or verdict.roll.standings.get(rank) in GONE


def _adds(place: RankPlace, call_site: CallSiteName | None) -> bool:
    """Whether a stack shows more than the line at which the operation was called."""
    return place.source.is_stack and place.frame != call_site


def _coverage(verdict: Verdict) -> list[str]:
    if verdict.reporting == verdict.members or has_own_words(verdict):
        return []
    unseen = sorted({*verdict.ranks} & {*verdict.roll.unseen} - {*verdict.launch.sizes})
    adds = unseen and verdict.kind is not VerdictKind.UNREACHABLE
    parts = [f"{name_ranks(unseen)} {have(unseen)} not been seen at all"] if adds else []
    return [*parts, f"{verdict.reporting} of {verdict.members} ranks report"]


def _deadline(verdict: Verdict, moment_ns: int) -> list[str]:
    return [describe_deadline(verdict.deadline, moment_ns)] if verdict.deadline is not None else []


# --- causes --------------------------------------------------


def cause_of(verdict: Verdict, age: str) -> str:
    """Describe the cause; `age` is how long the first rank has waited."""
    match verdict.kind:
        case VerdictKind.SHARED_GROUP:
            return _shared(verdict, age)
        case VerdictKind.MISMATCHED:
            return _mismatched(verdict, age)
        case VerdictKind.DEAD:
            return _dead(verdict, age)
        case VerdictKind.FROZEN:
            return _frozen(verdict, age)
        case VerdictKind.CIRCULAR:
            return _circular(verdict, age)
        case VerdictKind.UNMATCHED:
            return describe_departure(verdict, _operation_id(verdict), age) or _unmatched(verdict, age)
        case VerdictKind.ABSENT:
            return describe_departure(verdict, _operation_id(verdict), age) or _absent(verdict, age)
        case VerdictKind.RENDEZVOUS:
            return _rendezvous(verdict, age)
        case VerdictKind.DEVICE:
            return _device(verdict, age)
        case VerdictKind.STUCK:
            return _stuck(verdict, age)
        case VerdictKind.TRANSPORT:
            return _transport(verdict, age)
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
    """The operation as the ranks that are missing would enter it."""
    channel = verdict.operation_id.channel
    if not channel.is_point_to_point:
        return _operation_id(verdict)
    side = "send" if verdict.ranks == (channel.source,) else "recv"
    # The label is that of the side that waits: the other one's stage is another.
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


def _shared(verdict: Verdict, age: str) -> str:
    assert verdict.sharing is not None
    group = verdict.group.title if verdict.group is not None else "a group"
    shared = describe_sharing(verdict.sharing.ranks, verdict.sharing.example, group)
    return f"{shared}; which comes first is chance, and {_operation_id(verdict)} has been blocked for {age}"


def describe_sharing(ranks: tuple[int, ...], example: SharedGroup, group: str) -> str:
    """Which two threads use a group, and where they call."""
    calls = [_describe_call(*one) for one in zip(example.operations, example.call_sites, example.callers, strict=True)]
    return f"two threads of {name_ranks(ranks)} share {group}: {' and '.join(calls)}"


def _describe_call(operation: str, site: CallSiteName | None, caller: str) -> str:
    thread = "the main thread" if caller == MAIN_THREAD else caller.partition(" (")[0] or "one"
    line = f" at {describe_line(site)}" if site is not None else ""
    return f"{thread} calls {operation}{line}"


def _mismatched(verdict: Verdict, age: str) -> str:
    mismatch = verdict.mismatch
    assert mismatch is not None
    if mismatch.field is Field.MEMBERS:
        return f"{describe_creations(mismatch)}; {_operation_id(verdict)} has been blocked for {age}"
    gone = [rank for rank in verdict.roll.standings if _is_gone(verdict, rank)]
    return describe_ways(mismatch, gone) or (
        f"{describe_mismatch(mismatch, verdict.group)}, and the operation has been blocked for {age}"
    )


def describe_mismatch(mismatch: Mismatch, group: GroupView | None) -> str:
    """Which ranks made which call, the minority first."""
    if mismatch.field is Field.MEMBERS:
        return describe_creations(mismatch)
    operation_id = describe_operation(mismatch.operation, group, mismatch.operation_id)
    if mismatch.misfit is not None:
        line = common_line(mismatch.ways) or describe_ends(mismatch)
        return f"{describe_misfit(mismatch.misfit, mismatch.operation)}, in {operation_id}{line}"
    ways = describe_ways(mismatch)
    if ways:
        return "; ".join([f"{ways}, in {operation_id}", *describe_values(mismatch)])
    line = common_line(mismatch.ways)
    if not mismatch.has_majority:
        parties = ", ".join(_describe_party(ranks, text) for text, ranks in mismatch.parties[:MAX_PARTIES])
        return f"ranks disagree on the {mismatch.field.value} of {operation_id}{line}: {parties}"
    (majority, many), *others = mismatch.parties
    if mismatch.field is Field.OPERATION:
        parties = ", ".join(_describe_party(ranks, f"entered {text}") for text, ranks in others[:MAX_PARTIES])
        return f"{parties} where {_describe_party(many, 'entered')} {operation_id}{line}"
    parties = ", ".join(
        _describe_party(ranks, f"{mismatch.field.value} {text}") for text, ranks in others[:MAX_PARTIES]
    )
    return f"{parties} where {_describe_party(many, majority)} in {operation_id}{line}"


def _describe_party(ranks: tuple[int, ...], what: str) -> str:
    return f"{name_ranks(ranks)} {have(ranks)} {what}"


def _circular(verdict: Verdict, age: str) -> str:
    each_other = f"{name_ranks(verdict.ranks)} have waited for each other for {age}"
    alike = {(link.operation, link.call_site, link.remote) for link in verdict.circle}
    are_messages = all(link.operation_id.channel.is_point_to_point for link in verdict.circle)
    if len(alike) != 1 or not are_messages:
        return f"{each_other}: {_describe_circle(verdict)}"
    [(operation, site, _)] = alike  # a ring: whom each waits for is all that differs
    links = [f"rank {link.rank} for rank {link.missing}" for link in verdict.circle[:MAX_PARTIES]]
    more = len(verdict.circle) - MAX_PARTIES
    return f"{each_other} in {operation}{at_line(site)}: {', '.join(links)}{f' and {more} more' if more > 0 else ''}"


def _describe_circle(verdict: Verdict) -> str:
    links = "; ".join(_describe_link(link) for link in verdict.circle[:MAX_PARTIES])
    more = len(verdict.circle) - MAX_PARTIES
    return f"{links}{f'; {more} more' if more > 0 else ''}"


def _describe_link(link: Link) -> str:
    ranks = link.ranks or (link.rank,)
    wait = "waits" if len(ranks) == 1 else "wait"
    target = f" for rank {link.missing}" if link.missing >= 0 else ""
    return f"{name_ranks(ranks)} {wait}{target} in {describe_link(link)}{at_line(link.call_site)}"


def describe_link(link: Link) -> str:
    """The operation in which a rank of a circle waits."""
    operation = describe_operation(link.operation, link.group, link.operation_id, link.label)
    return operation if link.remote is None else f"its call of {link.remote.text}, which is in {operation}"


def _unmatched(verdict: Verdict, age: str) -> str:
    ranks = verdict.ranks
    if verdict.circle:
        tags = {link.operation_id.channel.tag for link in verdict.circle}
        what = "tags" if len(tags) > 1 else "groups"
        each_other = f"{name_ranks(ranks)} have waited for each other for {age}"
        return f"{each_other}, and their {what} differ: {_describe_circle(verdict)}"
    side = "send" if ranks == (verdict.operation_id.channel.source,) else "recv"
    missing = f"{name_ranks(ranks)} {have(ranks)} no matching {side}"
    return f"{missing} for {_operation_id(verdict)}, which has been blocked for {age}"


def _rendezvous(verdict: Verdict, age: str) -> str:
    sizes = describe_sizes(verdict)
    if sizes:
        return f"{sizes}: {_operation_id(verdict)} has been blocked for {age}"
    if has_own_words(verdict):
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


def _stuck(verdict: Verdict, age: str) -> str:
    ranks = verdict.ranks
    is_on_device = any(verdict.roll.waits[rank].record.flags & Flag.ON_DEVICE for rank in ranks)
    what = "device" if is_on_device else "process"
    if len(ranks) == 1:
        broken = f"its {what}, or its connection to them, is stuck or broken"
    else:
        broken = f"their {_PLURALS[what]}, or their connections to them, are stuck or broken"
    not_out = f"{name_ranks(ranks)} {have(ranks)} not come out of {_operation_id(verdict)} for {age}"
    return f"{not_out}, although others have: {broken}"


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


def _operation_id(verdict: Verdict) -> str:
    return describe_operation(verdict.operation, verdict.group, verdict.operation_id, verdict.label)


# --- names --------------------------------------------------


def describe_place(place: RankPlace, subject: str) -> str:
    """Where `subject` ("rank 2", "it") is, as a clause; '' when nothing is known."""
    line = "" if place.frame is None else describe_frame(place.frame)
    through = describe_through(place.frame)
    if through:
        line += f", in {through}"
    match place.source:
        case PlaceSource.STACK:
            clause = f"{subject} is in {line}" if line else ""
        case PlaceSource.SIGNAL:
            clause = f"{subject} is in {line} (stack taken by a signal while the GIL was held)" if line else ""
        case PlaceSource.EXCEPTION:
            clause = describe_raised(subject, place.operation, line, place.message)
        case PlaceSource.OPEN_OPERATION:
            clause = f"{subject} is in {place.operation}{called_in(place.frame)}"
        case PlaceSource.LAST_OPERATION:
            clause = f"{subject} was last in {place.operation}{called_in(place.frame)}"
        case PlaceSource.NOTHING:
            clause = ""
    if place.instead is not None:
        clause = f"{subject} is in {describe_instead(place.instead)}{called_in(place.frame)}"
    if clause and place.child is not None:
        clause += f" and waits for {describe_child(place.child, place.child_for_ns / 1e9)}"
    if place.frozen_for_ns is None:
        return clause
    frozen = f"its Python threads have not run for {seconds(place.frozen_for_ns / 1e9)}"
    return f"{clause}, and {frozen}" if clause else f"{subject} does not answer: {frozen}"
