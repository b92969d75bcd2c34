"""What was called in each group, as far as it shows what the group is for."""

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
from otel_torchdist.model.units import item_bytes
from otel_torchdist.sources.history.call_kinds import CallKind
from otel_torchdist.sources.history.call_table import CallTable, RankCalls

FIRST_STEADY: Final = 2
"""Earlier steps create groups, broadcast weights and warm up."""
SMALL_ELEMENTS: Final = 16
"""Losses, norms and counters, which any group may exchange."""
MAX_SIZES: Final = 256
MAX_SPREAD: Final = 128
"""Members of a group, between all pairs of which traffic is listed: thousands have millions of pairs."""
_EXCHANGE: Final = "all_to_all"
_BROADCAST: Final = "broadcast"
_UNEVEN: Final = int(Flag.UNEVEN)
UNKNOWN_SHAPE: Final = -1
"""Dimensions of tensors whose shapes are not recorded, as in most traces of profilers."""


class CallShape(NamedTuple):
    """What distinguishes calls of a group by their purpose.

    Attributes:
        collective: `all_reduce`, `all_gather`, …, whichever form of it; `send` and `recv` for both directions.
        reduce_op: `sum`, `avg`, …; '' where there is none.
        dimensions: Of the largest tensor; `UNKNOWN_SHAPE` if only the number of its elements is known.
        is_integer: Whether it holds integers: counts of what is sent next.
        is_small: Whether it is a scalar or a list of at most `SMALL_ELEMENTS` elements.
        site: Where it was called; None if that is not known.
        phase: Whether a backward pass called it.
    """

    collective: str
    reduce_op: str
    dimensions: int
    is_integer: bool
    is_small: bool
    site: CallSiteName | None
    phase: Phase = Phase.UNKNOWN


@dataclass(slots=True)
class KindCount:
    """The calls of one kind.

    Attributes:
        calls: Calls of all members.
        sent: Bytes that members sent in them, see `sent_bytes`.
        elements: Different numbers of elements, at most `MAX_SIZES`.
        is_uneven: Whether ranks sent others parts of different size in one of them.
    """

    calls: int = 0
    sent: float = 0.0
    elements: set[int] = field(default_factory=set[int])
    is_uneven: bool = False


@dataclass(slots=True)
class GroupCalls:
    """The calls of one set of members, in however many groups.

    Attributes:
        descriptions: What its groups are called.
        kinds: The calls, by kind.
        messages: How many messages one global rank sent to another.
        message_bytes: How many bytes these had.
        unaddressed: By rank, how many messages it sent or received of which the other end is not recorded.
        exchanges: Its `all_to_all` of anything but integers.
    """

    descriptions: set[str] = field(default_factory=set[str])
    kinds: dict[CallShape, KindCount] = field(default_factory=dict[CallShape, KindCount])
    messages: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    message_bytes: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    unaddressed: Counter[int] = field(default_factory=Counter[int])
    exchanges: Exchanges = field(default_factory=Exchanges)

    @property
    def sent(self) -> float:
        """Bytes that were sent in all calls."""
        return sum(count.sent for count in self.kinds.values())

    def of_senders(self, ranks: Collection[int]) -> GroupCalls:
        """The messages that some ranks sent, as those of a group of their own."""
        messages = Counter({pair: count for pair, count in self.messages.items() if pair[0] in ranks})
        sizes = Counter({pair: size for pair, size in self.message_bytes.items() if pair[0] in ranks})
        kind = CallShape(SEND, "", 0, False, False, None)
        count = KindCount(messages.total(), float(sizes.total()))
        return GroupCalls(kinds={kind: count}, messages=messages, message_bytes=sizes)

    def without_messages(self) -> GroupCalls:
        """The calls of all members together."""
        kinds = {kind: count for kind, count in self.kinds.items() if kind.collective not in MESSAGES}
        return GroupCalls(self.descriptions, kinds, exchanges=self.exchanges)

    def add(self, other: GroupCalls) -> None:
        """Add the calls of another set of members."""
        self.descriptions |= other.descriptions
        self.messages.update(other.messages)
        self.message_bytes.update(other.message_bytes)
        self.unaddressed.update(other.unaddressed)
        for kind, count in other.kinds.items():
            own = self.kinds.setdefault(kind, KindCount())
            own.calls += count.calls
            own.sent += count.sent
            own.elements |= count.elements
            own.is_uneven |= count.is_uneven


@dataclass(slots=True)
class WorldCalls:
    """The calls of all ranks.

    Attributes:
        world_size: Ranks of the job, as far as that is known.
        ranks: Those with records.
        hosts: The host of each, where that is known.
        groups: By members.
        sent: Bytes that each rank sent to each other, assuming rings where torch does not fix the route.
        unspread: Bytes of `all_to_all` in groups of more than `MAX_SPREAD` ranks, and of messages to ranks that are not
            recorded, which are not in `sent`.
        has_steps: Whether only steps after the first ones were counted; otherwise all calls were.
        steps: How many steps were counted, on the rank with most of them.
    """

    world_size: int = 0
    ranks: set[int] = field(default_factory=set[int])
    hosts: dict[int, str] = field(default_factory=dict[int, str])
    groups: dict[Members, GroupCalls] = field(default_factory=dict[Members, GroupCalls])
    sent: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    unspread: int = 0
    has_steps: bool = True
    steps: int = 0


class CallCounter:
    """Counts the calls of one rank after the other."""

    def __init__(self) -> None:
        """Start without any."""
        self._steady, self._every = WorldCalls(), WorldCalls()

    def add(self, calls: RankCalls) -> None:
        """Count the calls of another rank."""
        for found in (self._steady, self._every):
            found.world_size = max(found.world_size, calls.world_size)
            found.ranks.add(calls.rank)
            if calls.host:
                found.hosts[calls.rank] = calls.host
        steady_steps = sum(step >= FIRST_STEADY for step in set(calls.step))
        self._steady.steps = max(self._steady.steps, steady_steps)
        for group in calls.known_groups:
            _register(self._every, group)
        for alike in _alike(calls):
            _count(self._every, calls.rank, alike, alike.calls)
            if alike.steady:
                _count(self._steady, calls.rank, alike, alike.steady)
        for place, kind, group in _exchanges(calls):
            exchange = group.key, calls.rank, calls.sequence[place], kind.message_bytes, _received(calls, place, kind)
            _register(self._every, group).exchanges.add(*exchange)
            if calls.step[place] >= FIRST_STEADY:
                _register(self._steady, group).exchanges.add(*exchange)

    def counted(self) -> WorldCalls:
        """What there is: the calls of steady steps, or all, if there are no such steps."""
        steady, every = self._steady, self._every
        if not steady.groups:
            every.has_steps = not any(group.kinds for group in every.groups.values())
            return every
        for members, calls in every.groups.items():  # unused groups show the axes as well
            steady.groups.setdefault(members, GroupCalls(descriptions=calls.descriptions))
        steady.world_size = every.world_size
        return steady


def calls_of(histories: Iterable[RankHistory]) -> WorldCalls:
    """Count the calls of all ranks, one history after the other.

    Args:
        histories: One for each rank, in any order.
    """
    counter, table = CallCounter(), CallTable()
    for history in histories:
        counter.add(table.columns_of(history))
    return counter.counted()


@dataclass(slots=True)
class _Alike:
    """Calls in one group that differ in nothing that counts.

    Attributes:
        kind: Their kind.
        group: Their group.
        splits: How each of them is split; None if it is even or unknown.
        calls: Number of calls.
        steady: Number of them from `FIRST_STEADY` on.
    """

    kind: CallKind
    group: GroupView
    splits: Splits | None
    calls: int = 0
    steady: int = 0


def _alike(calls: RankCalls) -> Iterable[_Alike]:
    """Count the calls in groups; worlds made by hand are no axes of this one."""
    splits_of: Iterable[Splits | None] = itertools.repeat(None)
    if calls.splits:
        splits_of = map(calls.splits.get, range(len(calls)))
    are_steady = map(FIRST_STEADY.__le__, calls.step)
    counts = Counter(zip(calls.kind, splits_of, are_steady, strict=False))
    found: dict[tuple[object, ...], _Alike] = {}
    for (number, splits, is_steady), count in counts.items():
        kind = calls.kinds[number]
        if kind.group is None or kind.record_kind is not RecordKind.OPERATION or kind.group.name.world:
            continue
        key = (
            *(id(kind.group), id(kind.signature), id(kind.site), kind.operation, kind.message_bytes, kind.peer),
            *(kind.phase, splits, kind.flags & _UNEVEN),
        )
        alike = found.setdefault(key, _Alike(kind, kind.group, splits))
        alike.calls += count
        alike.steady += count * is_steady
    return found.values()


def _exchanges(calls: RankCalls) -> Iterator[tuple[int, CallKind, GroupView]]:
    """Yield the exchanges of data, and not those of how much is exchanged next, with their groups."""
    found: dict[int, tuple[CallKind, GroupView]] = {}
    for number, kind in enumerate(calls.kinds):
        group = kind.group
        # Positions that mean nothing to other ranks cannot be compared with theirs.
        is_shared = group is not None and group.name.aligned and not group.name.world
        if group is not None and is_shared and kind.operation in EXCHANGES and not _shape_of(kind)[0].is_integer:
            found[number] = kind, group
    for place, number in enumerate(calls.kind if found else ()):
        if number in found:
            yield place, *found[number]


def _received(calls: RankCalls, place: int, kind: CallKind) -> int | None:
    """Return the bytes that a rank received in an `all_to_all`; None if it is uneven and that is not known."""
    splits = calls.splits.get(place)
    if splits is not None:
        return splits.received
    return None if kind.flags & _UNEVEN else kind.message_bytes


def _register(found: WorldCalls, view: GroupView) -> GroupCalls:
    members, description = view.name.ranks, view.name.description
    group = found.groups.get(members)
    if group is None:
        group = found.groups[members] = GroupCalls()
        found.world_size = max(found.world_size, members[-1] + 1) if members else found.world_size
    if description not in ("", "undefined"):
        group.descriptions.add(description)
    return group


def _count(found: WorldCalls, rank: int, alike: _Alike, calls: int) -> None:
    """Count calls that are alike."""
    members, group = alike.group.name.ranks, _register(found, alike.group)
    kind, elements = _shape_of(alike.kind)
    count = group.kinds.setdefault(kind, KindCount())
    sent = calls * _sent(rank, members, alike)
    count.calls += calls
    count.sent += sent
    count.is_uneven |= bool(alike.kind.flags & _UNEVEN)
    if len(count.elements) < MAX_SIZES:
        count.elements.add(elements)
    peer = alike.kind.peer
    if kind.collective in MESSAGES and peer < 0:
        group.unaddressed[rank] += calls
    if kind.collective == SEND and peer >= 0:
        group.messages[rank, peer] += calls
        group.message_bytes[rank, peer] += round(sent)
        found.sent[rank, peer] += round(sent)
    elif kind.collective == SEND:
        found.unspread += round(sent)
    elif kind.collective == _BROADCAST and peer == rank:
        for sender, receiver in _chain(peer, members):
            found.sent[sender, receiver] += calls * alike.kind.message_bytes
    elif sent and kind.collective != _EXCHANGE:
        place = bisect_left(members, rank)
        found.sent[rank, members[(place + 1) % len(members)]] += round(sent)
    elif sent and len(members) <= MAX_SPREAD:
        parts = _parts(members, alike.splits) or dict.fromkeys(members, sent / calls / (len(members) - 1))
        for other, part in parts.items():
            if other != rank and part:
                found.sent[rank, other] += round(calls * part)
    else:
        found.unspread += round(sent)


def _sent(rank: int, members: Members, alike: _Alike) -> float:
    kind, parts = alike.kind, _parts(members, alike.splits)
    root = kind.peer
    if (
        root >= 0 and family_of(kind.operation) == _BROADCAST
    ):  # tapes have bytes of the root alone, traces of all members
        return float((len(members) - 1) * kind.message_bytes) if root == rank else 0.0
    if parts is None:
        return sent_bytes(kind.operation, kind.message_bytes, len(members))
    return sum(parts.values()) - parts.get(rank, 0)


def _chain(root: int, members: Members) -> list[tuple[int, int]]:
    """Return who passes a broadcast on to whom."""
    place = bisect_left(members, root)
    order = (*members[place:], *members[:place])
    return list(itertools.pairwise(order))


def _parts(members: Members, splits: Splits | None) -> dict[int, int] | None:
    """What each member gets in an uneven exchange; None in others, or if that is not known."""
    if splits is None or len(splits.sent) != len(members):
        return None
    return dict(zip(members, splits.sent, strict=True))


def _shape_of(call: CallKind) -> tuple[CallShape, int]:
    """The shape of a call, and the elements of its largest tensor."""
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
