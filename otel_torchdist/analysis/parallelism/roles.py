"""What groups are for, from what is called in them: data, tensor, pipeline, expert, context parallelism.

Each kind of call speaks for one role. The rules were fixed on small jobs of known parallelism; what the calls leave
open is reported as open. Names of groups are compared with the outcome, and decide nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from otel_torchdist.analysis.parallelism.calls import UNKNOWN_SHAPE, CallShape, GroupCalls, KindCount
from otel_torchdist.model.calls import UNREAD
from otel_torchdist.model.collectives import MESSAGES
from otel_torchdist.model.kinds import Phase
from otel_torchdist.model.names import CallSiteName


class Role(Enum):
    """What a group is for."""

    DATA = "DP"
    """Gradients are averaged: the model is replicated."""
    SHARDED = "FSDP"
    """Parameters are gathered and gradients scattered: the model is sharded."""
    REPLICA = "HSDP replicas"
    """Gradients that another group has scattered are averaged."""
    TENSOR = "TP"
    """Activations are reduced within a layer."""
    SEQUENCE = "TP with SP"
    """Activations are gathered and scattered within a layer, along the sequence."""
    PIPELINE = "PP"
    """Neighbours send each other activations and gradients."""
    ATTENTION_RING = "CP (ring)"
    """Neighbours send each other tensors all the way round, equally many everywhere."""
    RING = "PP or ring CP"
    """Neighbours send each other tensors all the way round: interleaved stages, or ring attention."""
    EXPERT = "EP"
    """Tokens are exchanged, as many as the router decides."""
    CONTEXT = "CP (Ulysses)"
    """Heads are exchanged for parts of the sequence, always as many."""


class RoleEvidence(msgspec.Struct, frozen=True):
    """A role of groups, and why they have it.

    Attributes:
        role: `DP`, `TP`, …
        calls: Calls that speak for it, of all members.
        sent_bytes: Bytes that members sent in them.
        share: Their share of the bytes of the groups; of their calls, if nothing was sent.
        evidence: The calls, in words.
    """

    role: Role
    calls: int
    sent_bytes: int
    share: float
    evidence: str


MIN_SHARE: Final = 0.1
"""Of the bytes, that a second role has at least; of the calls, where each rank sends others different data."""


@dataclass(frozen=True, slots=True)
class Round:
    """Messages that go round a ring of ranks.

    Attributes:
        fewest: Messages between the two neighbours that send each other the fewest.
        most: Between those that send each other the most.
    """

    fewest: int
    most: int


MIN_FORWARD: Final = 0.1
"""Of the bytes of unshaped tensors, that move in forward if these are activations; statistics of a batch are less."""
MANY: Final = 8
"""Messages between two neighbours, from which on their number says something."""
EVEN: Final = 0.98
UNEVEN: Final = 0.9


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known besides the calls of the groups in question.

    Attributes:
        scattered: Numbers of elements that a rank is left with after a `reduce_scatter` in other groups.
        round: Where messages also go from the last rank of the groups to the first, how many; None elsewhere.
        has_backward: Whether any rank is known to have called something in a backward pass.
    """

    scattered: Collection[int] = ()
    round: Round | None = None
    has_backward: bool = False


def roles_of(calls: GroupCalls, around: Surroundings) -> list[RoleEvidence]:
    """Return the roles that calls speak for, the one with the largest share first; none if they show nothing.

    Args:
        calls: Those of groups that are for the same.
        around: What else is known of these groups.
    """
    whole = _Whole.of(calls.kinds, around)
    by_role: dict[Role, list[tuple[CallShape, KindCount]]] = {}
    for kind, count in calls.kinds.items():
        role = _role_of(kind, count, around, whole)
        if role is not None:
            by_role.setdefault(role, []).append((kind, count))
    sent = sum(count.sent for of in by_role.values() for _, count in of)
    total = sum(count.calls for of in by_role.values() for _, count in of)
    found = [_evidence(role, of, sent, total) for role, of in by_role.items()]
    found.sort(key=lambda one: -one.share)
    return [one for nth, one in enumerate(found) if not nth or _is_relevant(one, total)]


def _is_relevant(one: RoleEvidence, total: int) -> bool:
    """Whether a second role is shown: few bytes may be a by-product, unless ranks send others different data."""
    is_exchange = one.role in (Role.EXPERT, Role.CONTEXT, Role.PIPELINE, Role.ATTENTION_RING, Role.RING)
    return one.share >= MIN_SHARE or (is_exchange and one.calls / total >= MIN_SHARE)


@dataclass(frozen=True, slots=True)
class _Whole:
    """What all calls of groups show together.

    Attributes:
        flat: Where flat tensors are reduced: gradients have all shapes, activations of a layer have one.
        averages: Whether tensors with dimensions are only reduced by backward passes, as gradients are: activations are
            reduced in forward.
        scatters: Whether they are only scattered by backward passes: what is gathered in forward are parameters.
        unshaped: The same for tensors of which the shapes are not recorded.
    """

    flat: frozenset[CallSiteName | None]
    averages: bool
    scatters: bool
    unshaped: UnshapedCalls

    @classmethod
    def of(cls, counts: Mapping[CallShape, KindCount], around: Surroundings) -> _Whole:
        kinds = [kind for kind in counts if not kind.is_small]
        flat = (kind.site for kind in kinds if kind.collective == "all_reduce" and kind.dimensions == 1)
        shaped = [kind for kind in kinds if kind.dimensions > 1 and not kind.is_integer and kind.reduce_op != "avg"]
        inside = {kind.collective for kind in shaped if kind.phase is Phase.BACKWARD}
        outside = {kind.collective for kind in shaped if kind.phase is not Phase.BACKWARD}
        return cls(
            flat=frozenset(flat),
            averages="all_reduce" in inside and outside.isdisjoint(("all_reduce", "all_gather", "reduce_scatter")),
            scatters="reduce_scatter" in inside and outside.isdisjoint(("all_reduce", "reduce_scatter")),
            unshaped=UnshapedCalls(counts, around.has_backward),
        )


def _role_of(kind: CallShape, count: KindCount, around: Surroundings, whole: _Whole) -> Role | None:
    """The role that calls of one kind speak for; None if any group may make them."""
    if kind.collective in MESSAGES:
        return _role_of_messages(around.round)
    if kind.collective == "all_to_all":
        return _role_of_exchange(kind, count)
    if kind.is_small or kind.is_integer:
        return None
    if kind.dimensions == UNKNOWN_SHAPE:
        return _role_of_unshaped(kind, count, around, whole)
    if kind.collective in ("all_gather", "reduce_scatter"):
        return Role.SHARDED if kind.dimensions == 1 or whole.scatters else Role.SEQUENCE
    if kind.collective != "all_reduce":
        return None
    if kind.dimensions > 1 and kind.reduce_op != "avg" and kind.site not in whole.flat and not whole.averages:
        return Role.TENSOR
    return Role.REPLICA if count.elements.intersection(around.scattered) else Role.DATA


def _role_of_unshaped(kind: CallShape, count: KindCount, around: Surroundings, whole: _Whole) -> Role | None:
    if kind.collective in ("all_gather", "reduce_scatter"):
        roles = {Content.GRADIENTS: Role.SHARDED, Content.ACTIVATIONS: Role.SEQUENCE}
        return roles.get(whole.unshaped.scattered)
    if kind.collective != "all_reduce" or whole.unshaped.reduced is Content.UNKNOWN:
        return None
    if kind.reduce_op != "avg" and whole.unshaped.reduced is Content.ACTIVATIONS:
        return Role.TENSOR
    return Role.REPLICA if count.elements.intersection(around.scattered) else Role.DATA


def _role_of_messages(around: Round | None) -> Role:
    """Tell ring attention from a pipeline with v stages on each rank, whose last one sends nothing to the first.

    Around the ring of such a pipeline, v messages go from rank to rank for each microbatch, and v - 1 where it closes.
    """
    if around is None:
        return Role.PIPELINE
    if around.fewest < MANY:
        return Role.RING
    evenness = around.fewest / around.most
    if evenness >= EVEN:
        return Role.ATTENTION_RING
    return Role.PIPELINE if evenness <= UNEVEN else Role.RING


def _role_of_exchange(kind: CallShape, count: KindCount) -> Role | None:
    if kind.is_integer:
        return Role.EXPERT if kind.is_small else None  # how many tokens each rank is about to send
    return Role.EXPERT if count.is_uneven or len(count.elements) > 1 else Role.CONTEXT


def _evidence(role: Role, of: Iterable[tuple[CallShape, KindCount]], sent: float, total: int) -> RoleEvidence:
    of = list(of)
    calls, own_sent = sum(count.calls for _, count in of), sum(count.sent for _, count in of)
    names: Counter[str] = Counter()
    in_backward: Counter[str] = Counter()
    for kind, count in of:
        names[_described(kind)] += count.calls
        in_backward[_described(kind)] += count.calls * (kind.phase is Phase.BACKWARD)
    listed = ", ".join(
        f"{number:,} {name}{_share_in_backward(in_backward[name], number)}" for name, number in names.most_common()
    )
    share = own_sent / sent if sent else calls / max(total, 1)
    return RoleEvidence(role, calls, round(own_sent), share, listed)


def _share_in_backward(calls: int, of: int) -> str:
    if not calls:
        return ""
    return " (all in backward)" if calls == of else f" ({calls:,} in backward)"


def _described(kind: CallShape) -> str:
    if kind.collective in MESSAGES:
        return kind.collective
    is_known = kind.reduce_op not in ("", UNREAD)
    operator = f" ({kind.reduce_op})" if is_known and kind.collective == "all_reduce" else ""
    shape = "tensors of unknown shape" if kind.dimensions == UNKNOWN_SHAPE else f"{kind.dimensions}-d tensors"
    return f"{kind.collective}{operator} of {shape}"


_WORDS: Final[Mapping[str, frozenset[Role]]] = {
    "tp": frozenset({Role.TENSOR, Role.SEQUENCE}),
    "tensor": frozenset({Role.TENSOR, Role.SEQUENCE}),
    "pp": frozenset({Role.PIPELINE, Role.RING}),
    "pipe": frozenset({Role.PIPELINE, Role.RING}),
    "pipeline": frozenset({Role.PIPELINE, Role.RING}),
    "dp": frozenset({Role.DATA, Role.SHARDED, Role.REPLICA}),
    "ddp": frozenset({Role.DATA, Role.REPLICA}),
    "fsdp": frozenset({Role.SHARDED}),
    "shard": frozenset({Role.SHARDED}),
    "replicate": frozenset({Role.DATA, Role.REPLICA}),
    "data": frozenset({Role.DATA, Role.SHARDED, Role.REPLICA}),
    "ep": frozenset({Role.EXPERT}),
    "expert": frozenset({Role.EXPERT}),
    "cp": frozenset({Role.CONTEXT, Role.ATTENTION_RING, Role.RING}),
    "sp": frozenset({Role.CONTEXT, Role.SEQUENCE, Role.ATTENTION_RING, Role.RING}),
    "context": frozenset({Role.CONTEXT, Role.ATTENTION_RING, Role.RING}),
    "ulysses": frozenset({Role.CONTEXT}),
}


def roles_named(description: str) -> frozenset[Role]:
    """The roles that a group's description promises; none if it promises nothing, or more than one thing."""
    words = [word for word in re.split(r"[^a-z0-9]+", description.lower()) if word in _WORDS]
    return _WORDS[words[0]] if len(words) == 1 else frozenset()


def is_misnamed(description: str, found: Collection[RoleEvidence]) -> bool:
    """Whether groups are named after a role, and their calls speak for other roles alone."""
    promised = roles_named(description)
    return bool(promised and found) and not any(one.role in promised for one in found)


class Content(Enum):
    """What tensors hold."""

    GRADIENTS = "gradients"
    """Or parameters, where they are gathered."""
    ACTIVATIONS = "activations"
    UNKNOWN = "unknown"


class UnshapedCalls:
    """The calls of groups whose tensors have no known shape.

    Attributes:
        reduced: What `all_reduce` is called with.
        scattered: What `reduce_scatter` is called with, and so what `all_gather` gathers.
    """

    def __init__(self, kinds: Mapping[CallShape, KindCount], has_backward: bool) -> None:
        """Look when calls are made.

        Args:
            kinds: All calls of the groups.
            has_backward: Whether any rank is known to have called something in a backward pass, in any group.
        """
        self.reduced: Final = _content(kinds, "all_reduce", has_backward)
        self.scattered: Final = _content(kinds, "reduce_scatter", has_backward)


def _content(kinds: Mapping[CallShape, KindCount], collective: str, has_backward: bool) -> Content:
    sent = dict.fromkeys(Phase, 0.0)
    for kind, count in kinds.items():
        if (
            kind.collective == collective
            and kind.dimensions == UNKNOWN_SHAPE
            and not (kind.is_small or kind.is_integer)
        ):
            sent[kind.phase] += count.sent
    inside, outside = sent[Phase.BACKWARD], sent[Phase.OUTSIDE_BACKWARD]
    if not inside and not outside:
        return Content.UNKNOWN
    if inside and outside >= MIN_FORWARD * (inside + outside):
        return Content.ACTIVATIONS
    # Without any backward pass it is not training: there are no gradients.
    return Content.GRADIENTS if inside or has_backward else Content.UNKNOWN
