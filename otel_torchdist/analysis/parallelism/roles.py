"""Derives the roles of groups from their calls: data, tensor, pipeline, expert, context parallelism.

Each shape of call is evidence for one role. The rules come from small jobs of known parallelism. Ambiguous calls are
reported as ambiguous. Names of groups do not count; they are only compared with the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from otel_torchdist.analysis.parallelism.calls import UNKNOWN_SHAPE, CallShape, GroupCalls, ShapeCount
from otel_torchdist.model.calls import UNREAD
from otel_torchdist.model.collectives import MESSAGES
from otel_torchdist.model.kinds import Phase
from otel_torchdist.model.names import CallSiteName


class Role(Enum):
    """The purpose of a group."""

    DATA = "DP"
    """Gradients are averaged: the model is replicated."""
    SHARDED = "FSDP"
    """Parameters are gathered and gradients scattered: the model is sharded."""
    REPLICA = "HSDP replicas"
    """Gradients are averaged after another group has scattered them."""
    TENSOR = "TP"
    """Activations are reduced within a layer."""
    SEQUENCE = "TP with SP"
    """Activations are gathered and scattered within a layer, along the sequence."""
    PIPELINE = "PP"
    """Neighbors send each other activations and gradients."""
    ATTENTION_RING = "CP (ring)"
    """Neighbors send each other tensors around a ring, the same number between all neighbors."""
    RING = "PP or ring CP"
    """Neighbors send each other tensors around a ring: interleaved stages, or ring attention."""
    EXPERT = "EP"
    """Tokens are exchanged. The router decides how many."""
    CONTEXT = "CP (Ulysses)"
    """Heads are exchanged for parts of the sequence, in constant amounts."""


class RoleEvidence(msgspec.Struct, frozen=True):
    """A role of groups, with the calls that show it.

    Attributes:
        role: `DP`, `TP`, …
        calls: Calls that show the role, over all members.
        sent_bytes: Bytes that members sent in these calls.
        share: Share of the groups' bytes, or of their calls if nothing was sent.
        evidence: The calls, in words.
    """

    role: Role
    calls: int
    sent_bytes: int
    share: float
    evidence: str


MIN_SHARE: Final = 0.1
"""Least share of the bytes for a second role. Roles that exchange distinct data only need this share of the calls."""


@dataclass(frozen=True, slots=True)
class RingCounts:
    """The message counts between neighbors of a ring.

    Attributes:
        fewest: Messages between the two neighbors with the fewest.
        most: Messages between the two neighbors with the most.
    """

    fewest: int
    most: int


MIN_FORWARD: Final = 0.1
"""Tensors of unknown shape are activations if at least this share of their bytes moves outside of backward. Batch
statistics have less."""
MIN_MESSAGES: Final = 8
"""Least number of messages between two neighbors that makes evenness significant."""
MIN_RING_EVENNESS: Final = 0.98
"""Least ratio of `fewest` to `most` in ring attention."""
MAX_PIPELINE_EVENNESS: Final = 0.9
"""Greatest ratio of `fewest` to `most` in a pipeline."""


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The context of groups whose roles are derived.

    Attributes:
        scattered: Element counts that each rank holds after a `reduce_scatter` in other groups.
        ring: Message counts around the groups' rings; None if the last rank does not send to the first.
        has_backward: Whether any rank is known to have made calls in a backward pass.
    """

    scattered: Collection[int] = ()
    ring: RingCounts | None = None
    has_backward: bool = False


def roles_of(calls: GroupCalls, context: GroupContext) -> list[RoleEvidence]:
    """Return the roles that calls show, the largest share first; empty if they show none.

    Args:
        calls: The calls of groups with the same purpose.
        context: The context of these groups.
    """
    patterns = _CallPatterns.of(calls.shapes, context)
    by_role: dict[Role, list[tuple[CallShape, ShapeCount]]] = {}
    for shape, count in calls.shapes.items():
        role = _role_of(shape, count, context, patterns)
        if role is not None:
            by_role.setdefault(role, []).append((shape, count))
    sent = sum(count.sent for counts in by_role.values() for _, count in counts)
    total = sum(count.calls for counts in by_role.values() for _, count in counts)
    roles = [_evidence(role, counts, sent, total) for role, counts in by_role.items()]
    roles.sort(key=lambda evidence: -evidence.share)
    return [evidence for nth, evidence in enumerate(roles) if not nth or _is_relevant(evidence, total)]


def _is_relevant(evidence: RoleEvidence, total: int) -> bool:
    """Return whether to report a second role. Few bytes may be a by-product, unless ranks exchange distinct data."""
    is_exchange = evidence.role in (Role.EXPERT, Role.CONTEXT, Role.PIPELINE, Role.ATTENTION_RING, Role.RING)
    return evidence.share >= MIN_SHARE or (is_exchange and evidence.calls / total >= MIN_SHARE)


@dataclass(frozen=True, slots=True)
class _CallPatterns:
    """The patterns that only all calls of the groups together show.

    Attributes:
        flat: Call sites that reduce 1-d tensors. All tensors that they reduce are gradients: gradients have many
            shapes, the activations of a layer only one.
        averages: Whether tensors of several dimensions are reduced in backward passes only. They are then gradients:
            activations would also be reduced in forward.
        scatters: Whether such tensors are scattered in backward passes only. Tensors gathered in forward are then
            parameters.
        unshaped: The content of tensors with unknown shapes.
    """

    flat: frozenset[CallSiteName | None]
    averages: bool
    scatters: bool
    unshaped: UnshapedCalls

    @classmethod
    def of(cls, counts: Mapping[CallShape, ShapeCount], context: GroupContext) -> _CallPatterns:
        shapes = [shape for shape in counts if not shape.is_small]
        flat = (shape.site for shape in shapes if shape.collective == "all_reduce" and shape.dimensions == 1)
        shaped = [
            shape for shape in shapes if shape.dimensions > 1 and not shape.is_integer and shape.reduce_op != "avg"
        ]
        inside = {shape.collective for shape in shaped if shape.phase is Phase.BACKWARD}
        outside = {shape.collective for shape in shaped if shape.phase is not Phase.BACKWARD}
        return cls(
            flat=frozenset(flat),
            averages="all_reduce" in inside and outside.isdisjoint(("all_reduce", "all_gather", "reduce_scatter")),
            scatters="reduce_scatter" in inside and outside.isdisjoint(("all_reduce", "reduce_scatter")),
            unshaped=UnshapedCalls(counts, context.has_backward),
        )


def _role_of(shape: CallShape, count: ShapeCount, context: GroupContext, patterns: _CallPatterns) -> Role | None:
    """Return the role that calls of one shape show, or None if any group may make such calls."""
    if shape.collective in MESSAGES:
        return _role_of_messages(context.ring)
    if shape.collective == "all_to_all":
        return _role_of_exchange(shape, count)
    if shape.is_small or shape.is_integer:
        return None
    if shape.dimensions == UNKNOWN_SHAPE:
        return _role_of_unshaped(shape, count, context, patterns)
    if shape.collective in ("all_gather", "reduce_scatter"):
        return Role.SHARDED if shape.dimensions == 1 or patterns.scatters else Role.SEQUENCE
    if shape.collective != "all_reduce":
        return None
    if shape.dimensions > 1 and shape.reduce_op != "avg" and shape.site not in patterns.flat and not patterns.averages:
        return Role.TENSOR
    return Role.REPLICA if count.elements.intersection(context.scattered) else Role.DATA


def _role_of_unshaped(
    shape: CallShape, count: ShapeCount, context: GroupContext, patterns: _CallPatterns
) -> Role | None:
    if shape.collective in ("all_gather", "reduce_scatter"):
        roles = {Content.GRADIENTS: Role.SHARDED, Content.ACTIVATIONS: Role.SEQUENCE}
        return roles.get(patterns.unshaped.scattered)
    if shape.collective != "all_reduce" or patterns.unshaped.reduced is Content.UNKNOWN:
        return None
    if shape.reduce_op != "avg" and patterns.unshaped.reduced is Content.ACTIVATIONS:
        return Role.TENSOR
    return Role.REPLICA if count.elements.intersection(context.scattered) else Role.DATA


def _role_of_messages(counts: RingCounts | None) -> Role:
    """Distinguish ring attention from an interleaved pipeline.

    In a pipeline with v stages on each rank, v messages per microbatch go from each rank to the next, but only v - 1
    from the last rank to the first: the last stage sends nothing to the first stage.
    """
    if counts is None:
        return Role.PIPELINE
    if counts.fewest < MIN_MESSAGES:
        return Role.RING
    evenness = counts.fewest / counts.most
    if evenness >= MIN_RING_EVENNESS:
        return Role.ATTENTION_RING
    return Role.PIPELINE if evenness <= MAX_PIPELINE_EVENNESS else Role.RING


def _role_of_exchange(shape: CallShape, count: ShapeCount) -> Role | None:
    if shape.is_integer:
        return Role.EXPERT if shape.is_small else None  # how many tokens each rank is about to send
    return Role.EXPERT if count.is_uneven or len(count.elements) > 1 else Role.CONTEXT


def _evidence(role: Role, counts: Iterable[tuple[CallShape, ShapeCount]], sent: float, total: int) -> RoleEvidence:
    counts = list(counts)
    calls, role_sent = sum(count.calls for _, count in counts), sum(count.sent for _, count in counts)
    names: Counter[str] = Counter()
    in_backward: Counter[str] = Counter()
    for shape, count in counts:
        names[_described(shape)] += count.calls
        in_backward[_described(shape)] += count.calls * (shape.phase is Phase.BACKWARD)
    listed = ", ".join(
        f"{number:,} {name}{_share_in_backward(in_backward[name], number)}" for name, number in names.most_common()
    )
    share = role_sent / sent if sent else calls / max(total, 1)
    return RoleEvidence(role, calls, round(role_sent), share, listed)


def _share_in_backward(calls: int, total: int) -> str:
    if not calls:
        return ""
    return " (all in backward)" if calls == total else f" ({calls:,} in backward)"


def _described(shape: CallShape) -> str:
    if shape.collective in MESSAGES:
        return shape.collective
    is_known = shape.reduce_op not in ("", UNREAD)
    operator = f" ({shape.reduce_op})" if is_known and shape.collective == "all_reduce" else ""
    tensors = "tensors of unknown shape" if shape.dimensions == UNKNOWN_SHAPE else f"{shape.dimensions}-d tensors"
    return f"{shape.collective}{operator} of {tensors}"


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
    """Return the roles that a group's description names; empty if it contains no known word, or several."""
    words = [word for word in re.split(r"[^a-z0-9]+", description.lower()) if word in _WORDS]
    return _WORDS[words[0]] if len(words) == 1 else frozenset()


def is_misnamed(description: str, roles: Collection[RoleEvidence]) -> bool:
    """Return whether groups are named after a role, and their calls show only other roles."""
    named = roles_named(description)
    return bool(named and roles) and not any(evidence.role in named for evidence in roles)


class Content(Enum):
    """The content of tensors."""

    GRADIENTS = "gradients"
    """Gradients, or parameters in an `all_gather`."""
    ACTIVATIONS = "activations"
    UNKNOWN = "unknown"


class UnshapedCalls:
    """The content of tensors with unknown shapes, derived from the phases of their calls.

    Attributes:
        reduced: Content of `all_reduce`.
        scattered: Content of `reduce_scatter`, and so of `all_gather`.
    """

    def __init__(self, shapes: Mapping[CallShape, ShapeCount], has_backward: bool) -> None:
        """Derive the content.

        Args:
            shapes: All calls of the groups.
            has_backward: Whether any rank is known to have made calls in a backward pass, in any group.
        """
        self.reduced: Final = _content(shapes, "all_reduce", has_backward)
        self.scattered: Final = _content(shapes, "reduce_scatter", has_backward)


def _content(shapes: Mapping[CallShape, ShapeCount], collective: str, has_backward: bool) -> Content:
    sent = dict.fromkeys(Phase, 0.0)
    for shape, count in shapes.items():
        if (
            shape.collective == collective
            and shape.dimensions == UNKNOWN_SHAPE
            and not (shape.is_small or shape.is_integer)
        ):
            sent[shape.phase] += count.sent
    inside, outside = sent[Phase.BACKWARD], sent[Phase.OUTSIDE_BACKWARD]
    if not inside and not outside:
        return Content.UNKNOWN
    if inside and outside >= MIN_FORWARD * (inside + outside):
        return Content.ACTIVATIONS
    # Without a backward pass this is not training, and there are no gradients.
    return Content.GRADIENTS if inside or has_backward else Content.UNKNOWN
