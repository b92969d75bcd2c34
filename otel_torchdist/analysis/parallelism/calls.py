"""Counts the calls in each group by the properties that reveal the group's purpose."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_torchdist.analysis.parallelism.families import Members
from otel_torchdist.analysis.parallelism.imbalance import Exchanges
from otel_torchdist.analysis.statistics.traffic import sent_bytes
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.collectives import EXCHANGES, MESSAGES, SEND, family_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, Phase, RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.operations import Splits
from otel_torchdist.model.text import item_bytes
from otel_torchdist.sources.history.call_kinds import CallKind
from otel_torchdist.sources.history.call_table import CallTable, RankCalls

FIRST_STEADY: Final = 2
"""First step that counts. Earlier steps create groups, broadcast weights and warm up."""
SMALL_ELEMENTS: Final = 16
"""Upper bound on the elements of losses, norms and counters, which any group may exchange."""
MAX_SIZES: Final = 256
MAX_SPREAD: Final = 128
"""Largest group whose traffic is listed by pair of members. Thousands of members have millions of pairs."""
_EXCHANGE: Final = "all_to_all"
_BROADCAST: Final = "broadcast"
_UNEVEN: Final = int(Flag.UNEVEN)
UNKNOWN_SHAPE: Final = -1
"""Dimensions of tensors whose shapes are not recorded, as in most profiler traces."""


class CallShape(NamedTuple):
    """The properties of a call that reveal its purpose.

    Attributes:
        collective: The family: `all_reduce`, `all_gather`, `send`, `recv`, …
        reduce_op: `sum`, `avg`, …; '' if there is none.
        dimensions: Dimensions of the largest tensor; `UNKNOWN_SHAPE` if only its number of elements is known.
        is_integer: Whether that tensor holds integers, such as the sizes of the next exchange.
        is_small: Whether that tensor has at most one dimension and at most `SMALL_ELEMENTS` elements.
        site: The call site; None if unknown.
        phase: Whether a backward pass made the call.
    """

    collective: str
    reduce_op: str
    dimensions: int
    is_integer: bool
    is_small: bool
    site: CallSiteName | None
    phase: Phase = Phase.UNKNOWN


@dataclass(slots=True)
class ShapeCount:
    """The count of calls of one shape.

    Attributes:
        calls: Calls of all members.
        sent: Bytes that members sent, see `sent_bytes`.
        elements: Distinct element counts, at most `MAX_SIZES`.
        is_uneven: Whether any call was an exchange of parts of different size.
    """

    calls: int = 0
    sent: float = 0.0
    elements: set[int] = field(default_factory=set[int])
    is_uneven: bool = False


@dataclass(slots=True)
class GroupCalls:
    """The calls of one set of members, over all of its groups.

    Attributes:
        descriptions: Descriptions of the groups.
        shapes: Counts of calls, by shape.
        messages: Number of messages, by global ranks of sender and receiver.
        message_bytes: Bytes of messages, by global ranks of sender and receiver.
        unaddressed: Number of messages without a recorded peer, by rank.
        exchanges: The `all_to_all` calls, except of integers.
    """

    descriptions: set[str] = field(default_factory=set[str])
    shapes: dict[CallShape, ShapeCount] = field(default_factory=dict[CallShape, ShapeCount])
    messages: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    message_bytes: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    unaddressed: Counter[int] = field(default_factory=Counter[int])
    exchanges: Exchanges = field(default_factory=Exchanges)

    @property
    def sent(self) -> float:
        """Bytes sent in all calls."""
        return sum(count.sent for count in self.shapes.values())

    def of_senders(self, ranks: Collection[int]) -> GroupCalls:
        """Return the messages sent by some ranks, as the calls of a separate group."""
        messages = Counter({pair: count for pair, count in self.messages.items() if pair[0] in ranks})
        sizes = Counter({pair: size for pair, size in self.message_bytes.items() if pair[0] in ranks})
        shape = CallShape(SEND, "", 0, False, False, None)
        count = ShapeCount(messages.total(), float(sizes.total()))
        return GroupCalls(shapes={shape: count}, messages=messages, message_bytes=sizes)

    def without_messages(self) -> GroupCalls:
        """Return a copy without point-to-point calls."""
        shapes = {shape: count for shape, count in self.shapes.items() if shape.collective not in MESSAGES}
        return GroupCalls(self.descriptions, shapes, exchanges=self.exchanges)

    def add(self, other: GroupCalls) -> None:
        """Add the calls of another set of members."""
        self.descriptions |= other.descriptions
        self.messages.update(other.messages)
        self.message_bytes.update(other.message_bytes)
        self.unaddressed.update(other.unaddressed)
        for shape, count in other.shapes.items():
            total = self.shapes.setdefault(shape, ShapeCount())
            total.calls += count.calls
            total.sent += count.sent
            total.elements |= count.elements
            total.is_uneven |= count.is_uneven


@dataclass(slots=True)
class WorldCalls:
    """The calls of all ranks.

    Attributes:
        world_size: Number of ranks in the job, if known; else the number seen.
        ranks: Ranks with records.
        hosts: Known hosts, by rank.
        groups: Calls, by the members of groups.
        sent: Bytes by sender and receiver, assuming rings where torch does not fix the route.
        unattributed: Bytes missing from `sent`: `all_to_all` in groups of more than `MAX_SPREAD` ranks, and messages
            without a recorded peer.
        has_steps: Whether only steps from `FIRST_STEADY` on were counted; else all calls were.
        steps: Number of counted steps, on the rank with the most.
    """

    world_size: int = 0
    ranks: set[int] = field(default_factory=set[int])
    hosts: dict[int, str] = field(default_factory=dict[int, str])
    groups: dict[Members, GroupCalls] = field(default_factory=dict[Members, GroupCalls])
    sent: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    unattributed: int = 0
    has_steps: bool = True
    steps: int = 0


class CallCounter:
    """Counts calls, one rank at a time."""

    def __init__(self) -> None:
        """Start without calls."""
        self._steady, self._every = WorldCalls(), WorldCalls()

    def add(self, calls: RankCalls) -> None:
        """Count the calls of a rank."""
        for world in (self._steady, self._every):
            world.world_size = max(world.world_size, calls.world_size)
            world.ranks.add(calls.rank)
            if calls.host:
                world.hosts[calls.rank] = calls.host
        steady_steps = sum(step >= FIRST_STEADY for step in set(calls.step))
        self._steady.steps = max(self._steady.steps, steady_steps)
        for group in calls.known_groups:
            _register(self._every, group)
        for batch in _batches(calls):
            _count(self._every, calls.rank, batch, batch.calls)
            if batch.steady:
                _count(self._steady, calls.rank, batch, batch.steady)
        for index, kind, group in _exchanges(calls):
            exchange = group.key, calls.rank, calls.sequence[index], kind.message_bytes, _received(calls, index, kind)
            _register(self._every, group).exchanges.add(*exchange)
            if calls.step[index] >= FIRST_STEADY:
                _register(self._steady, group).exchanges.add(*exchange)

    def counted(self) -> WorldCalls:
        """Return the calls of steady steps, or all calls if there are no steady steps."""
        steady, every = self._steady, self._every
        if not steady.groups:
            every.has_steps = not any(group.shapes for group in every.groups.values())
            return every
        for members, calls in every.groups.items():  # unused groups show the axes as well
            steady.groups.setdefault(members, GroupCalls(descriptions=calls.descriptions))
        steady.world_size = every.world_size
        return steady


def calls_of(histories: Iterable[RankHistory]) -> WorldCalls:
    """Count the calls of all ranks.

    Args:
        histories: One history per rank, in any order. Each is dropped before the next is taken.
    """
    counter, table = CallCounter(), CallTable()
    for history in histories:
        counter.add(table.columns_of(history))
    return counter.counted()


@dataclass(slots=True)
class _Batch:
    """Calls of one rank in one group that are equal in all counted properties.

    Attributes:
        splits: The split sizes of each call; None if even or unknown.
        calls: Number of calls.
        steady: Number of calls from step `FIRST_STEADY` on.
    """

    kind: CallKind
    group: GroupView
    splits: Splits | None
    calls: int = 0
    steady: int = 0


def _batches(calls: RankCalls) -> Iterable[_Batch]:
    """Count the calls in groups. Standalone process groups are skipped: they are not axes of this world."""
    splits_of: Iterable[Splits | None] = itertools.repeat(None)
    if calls.splits:
        splits_of = map(calls.splits.get, range(len(calls)))
    are_steady = map(FIRST_STEADY.__le__, calls.step)
    counts = Counter(zip(calls.kind, splits_of, are_steady, strict=False))
    batches: dict[tuple[object, ...], _Batch] = {}
    for (number, splits, is_steady), count in counts.items():
        kind = calls.kinds[number]
        if kind.group is None or kind.record_kind is not RecordKind.OPERATION or kind.group.name.world:
            continue
        key = (
            *(id(kind.group), id(kind.signature), id(kind.site), kind.operation, kind.message_bytes, kind.peer),
            *(kind.phase, splits, kind.flags & _UNEVEN),
        )
        batch = batches.setdefault(key, _Batch(kind, kind.group, splits))
        batch.calls += count
        batch.steady += count * is_steady
    return batches.values()


def _exchanges(calls: RankCalls) -> Iterator[tuple[int, CallKind, GroupView]]:
    """Yield the exchanges of data with their groups. Exchanges of integers are skipped: they announce sizes."""
    exchanges: dict[int, tuple[CallKind, GroupView]] = {}
    for number, kind in enumerate(calls.kinds):
        group = kind.group
        # Positions of unaligned groups cannot be compared between ranks.
        is_shared = group is not None and group.name.aligned and not group.name.world
        if group is not None and is_shared and kind.operation in EXCHANGES and not _shape_of(kind)[0].is_integer:
            exchanges[number] = kind, group
    for index, number in enumerate(calls.kind if exchanges else ()):
        if number in exchanges:
            yield index, *exchanges[number]


def _received(calls: RankCalls, index: int, kind: CallKind) -> int | None:
    """Return the bytes that a rank received in an `all_to_all`, or None if its uneven parts are unknown."""
    splits = calls.splits.get(index)
    if splits is not None:
        return splits.received
    return None if kind.flags & _UNEVEN else kind.message_bytes


def _register(world: WorldCalls, view: GroupView) -> GroupCalls:
    members, description = view.name.ranks, view.name.description
    group = world.groups.get(members)
    if group is None:
        group = world.groups[members] = GroupCalls()
        world.world_size = max(world.world_size, members[-1] + 1) if members else world.world_size
    if description not in ("", "undefined"):
        group.descriptions.add(description)
    return group


def _count(world: WorldCalls, rank: int, batch: _Batch, calls: int) -> None:
    """Add calls of a batch to the counts and to the traffic between ranks."""
    members, group = batch.group.name.ranks, _register(world, batch.group)
    shape, elements = _shape_of(batch.kind)
    count = group.shapes.setdefault(shape, ShapeCount())
    sent = calls * _sent(rank, members, batch)
    count.calls += calls
    count.sent += sent
    count.is_uneven |= bool(batch.kind.flags & _UNEVEN)
    if len(count.elements) < MAX_SIZES:
        count.elements.add(elements)
    peer = batch.kind.peer
    if shape.collective in MESSAGES and peer < 0:
        group.unaddressed[rank] += calls
    if shape.collective == SEND and peer >= 0:
        group.messages[rank, peer] += calls
        group.message_bytes[rank, peer] += round(sent)
        world.sent[rank, peer] += round(sent)
    elif shape.collective == SEND:
        world.unattributed += round(sent)
    elif shape.collective == _BROADCAST and peer == rank:
        for sender, receiver in _chain(peer, members):
            world.sent[sender, receiver] += calls * batch.kind.message_bytes
    elif sent and shape.collective != _EXCHANGE:
        index = bisect_left(members, rank)
        world.sent[rank, members[(index + 1) % len(members)]] += round(sent)
    elif sent and len(members) <= MAX_SPREAD:
        parts = _parts(members, batch.splits) or dict.fromkeys(members, sent / calls / (len(members) - 1))
        for other, part in parts.items():
            if other != rank and part:
                world.sent[rank, other] += round(calls * part)
    else:
        world.unattributed += round(sent)


def _sent(rank: int, members: Members, batch: _Batch) -> float:
    kind, parts = batch.kind, _parts(members, batch.splits)
    root = kind.peer
    # In a broadcast, tapes record bytes of the root only, profiler traces of all members.
    if root >= 0 and family_of(kind.operation) == _BROADCAST:
        return float((len(members) - 1) * kind.message_bytes) if root == rank else 0.0
    if parts is None:
        return sent_bytes(kind.operation, kind.message_bytes, len(members))
    return sum(parts.values()) - parts.get(rank, 0)


def _chain(root: int, members: Members) -> list[tuple[int, int]]:
    """Return the senders and receivers of a broadcast along a chain from the root."""
    index = bisect_left(members, root)
    order = (*members[index:], *members[:index])
    return list(itertools.pairwise(order))


def _parts(members: Members, splits: Splits | None) -> dict[int, int] | None:
    """Return the bytes for each member of an uneven exchange, or None for an even or unknown split."""
    if splits is None or len(splits.sent) != len(members):
        return None
    return dict(zip(members, splits.sent, strict=True))


def _shape_of(call: CallKind) -> tuple[CallShape, int]:
    """Return the shape of a call, and the number of elements of its largest tensor."""
    signature = call.signature
    shapes = signature.shapes if signature is not None else ()
    largest = max(shapes, key=math.prod, default=())
    dtypes = signature.dtypes if signature is not None else ()
    is_unknown = not shapes and bool(call.message_bytes)
    elements = math.prod(largest) if shapes else 0
    if is_unknown:
        elements = call.message_bytes // (item_bytes(dtypes[0]) if dtypes else 1)
    shape = CallShape(
        collective=family_of(call.operation),
        reduce_op=signature.reduce_op if signature is not None else "",
        dimensions=UNKNOWN_SHAPE if is_unknown else len(largest),
        is_integer=bool(dtypes) and all("int" in dtype for dtype in dtypes),
        is_small=len(largest) < 2 and elements <= SMALL_ELEMENTS,
        site=call.site,
        phase=call.phase,
    )
    return shape, elements
