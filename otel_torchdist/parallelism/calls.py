"""What was called in each group, as far as it shows what the group is for."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_torchdist.model.calls import GroupView, OperationView
from otel_torchdist.model.collectives import EXCHANGES, MESSAGES, SEND, family_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, Phase, RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.parallelism.families import Members
from otel_torchdist.parallelism.imbalance import Exchanges
from otel_torchdist.statistics.traffic import sent_bytes
from otel_torchdist.units import item_bytes

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


class CallKind(NamedTuple):
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
    kinds: dict[CallKind, KindCount] = field(default_factory=dict[CallKind, KindCount])
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
        kind = CallKind(SEND, "", 0, False, False, None)
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
    """Counts the calls of ranks, one history after the other."""

    def __init__(self) -> None:
        """Start without any."""
        self._steady, self._every = WorldCalls(), WorldCalls()

    def add(self, history: RankHistory) -> None:
        """Count the calls of another rank."""
        for found in (self._steady, self._every):
            found.world_size = max(found.world_size, history.world_size)
            found.ranks.add(history.rank)
            if history.host:
                found.hosts[history.rank] = history.host
        self._steady.steps = max(self._steady.steps, _steady_steps(history))
        for group in history.groups:
            _register(self._every, group)
        for view, calls, steady_calls in _alike(history.operations):
            _count(self._every, history.rank, view, calls)
            if steady_calls:
                _count(self._steady, history.rank, view, steady_calls)
        for group, view in _exchanges(history.operations):
            _register(self._every, group).exchanges.add(history.rank, view)
            if view.record.step >= FIRST_STEADY:
                _register(self._steady, group).exchanges.add(history.rank, view)

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
    counter = CallCounter()
    for history in histories:
        counter.add(history)
    return counter.counted()


def _steady_steps(history: RankHistory) -> int:
    return len({view.record.step for view in history.operations if view.record.step >= FIRST_STEADY})


def _alike(operations: Iterable[OperationView]) -> Iterator[tuple[OperationView, int, int]]:
    """Yield one of each kind of calls in groups, with how many there are, in all and from `FIRST_STEADY` on.

    Names are shared by calls, and comparing their addresses is much faster than comparing them.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    first: list[OperationView] = []
    for view in operations:
        record = view.record
        if view.group is None or record.kind is not RecordKind.OPERATION or view.group.name.world:
            continue  # worlds made by hand are no axes of this one
        key = (
            *(id(view.group), id(view.signature), id(view.call_site), view.name, record.message_bytes, record.peer),
            *(record.phase, record.splits, int(record.flags) & _UNEVEN),
        )
        counts = found.get(key)
        if counts is None:
            counts = found[key] = [0, 0]
            first.append(view)
        counts[0] += 1
        counts[1] += record.step >= FIRST_STEADY
    for view, (calls, steady) in zip(first, found.values(), strict=True):
        yield view, calls, steady


def _exchanges(operations: Iterable[OperationView]) -> Iterator[tuple[GroupView, OperationView]]:
    """Yield the exchanges of data, and not those of how much is exchanged next, with their groups."""
    for view in operations:
        group = view.group
        # Positions that mean nothing to other ranks cannot be compared with theirs.
        is_shared = group is not None and group.name.aligned and not group.name.world
        if group is not None and is_shared and view.name in EXCHANGES and not _kind_of(view)[0].is_integer:
            yield group, view


def _register(found: WorldCalls, view: GroupView) -> GroupCalls:
    members, description = view.name.ranks, view.name.description
    group = found.groups.get(members)
    if group is None:
        group = found.groups[members] = GroupCalls()
        found.world_size = max(found.world_size, members[-1] + 1) if members else found.world_size
    if description not in ("", "undefined"):
        group.descriptions.add(description)
    return group


def _count(found: WorldCalls, rank: int, view: OperationView, calls: int) -> None:
    """Count calls that are alike."""
    assert view.group is not None
    members, group = view.group.name.ranks, _register(found, view.group)
    kind, elements = _kind_of(view)
    count = group.kinds.setdefault(kind, KindCount())
    sent = calls * _sent(rank, members, view)
    count.calls += calls
    count.sent += sent
    count.is_uneven |= bool(int(view.record.flags) & _UNEVEN)
    if len(count.elements) < MAX_SIZES:
        count.elements.add(elements)
    peer = view.record.peer
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
            found.sent[sender, receiver] += calls * view.record.message_bytes
    elif sent and kind.collective != _EXCHANGE:
        place = bisect_left(members, rank)
        found.sent[rank, members[(place + 1) % len(members)]] += round(sent)
    elif sent and len(members) <= MAX_SPREAD:
        parts = _parts(members, view) or dict.fromkeys(members, sent / calls / (len(members) - 1))
        for other, part in parts.items():
            if other != rank and part:
                found.sent[rank, other] += round(calls * part)
    else:
        found.unspread += round(sent)


def _sent(rank: int, members: Members, view: OperationView) -> float:
    parts = _parts(members, view)
    root = view.record.peer
    if root >= 0 and family_of(view.name) == _BROADCAST:  # tapes have bytes of the root alone, traces of all members
        return float((len(members) - 1) * view.record.message_bytes) if root == rank else 0.0
    if parts is None:
        return sent_bytes(view.name, view.record.message_bytes, len(members))
    return sum(parts.values()) - parts.get(rank, 0)


def _chain(root: int, members: Members) -> list[tuple[int, int]]:
    """Return who passes a broadcast on to whom."""
    place = bisect_left(members, root)
    order = (*members[place:], *members[:place])
    return list(itertools.pairwise(order))


def _parts(members: Members, view: OperationView) -> dict[int, int] | None:
    """What each member gets in an uneven exchange; None in others, or if that is not known."""
    splits = view.record.splits
    if splits is None or len(splits.sent) != len(members):
        return None
    return dict(zip(members, splits.sent, strict=True))


def _kind_of(view: OperationView) -> tuple[CallKind, int]:
    """The kind of a call, and the elements of its largest tensor."""
    signature = view.signature
    shapes = signature.shapes if signature is not None else ()
    largest = max(shapes, key=math.prod, default=())
    dtypes = signature.dtypes if signature is not None else ()
    is_unknown = not shapes and bool(view.record.message_bytes)
    elements = math.prod(largest) if shapes else 0
    if is_unknown:
        elements = view.record.message_bytes // (item_bytes(dtypes[0]) if dtypes else 1)
    kind = CallKind(
        collective=family_of(view.name),
        reduce_op=signature.reduce_op if signature is not None else "",
        dimensions=UNKNOWN_SHAPE if is_unknown else len(largest),
        is_integer=bool(dtypes) and all("int" in dtype for dtype in dtypes),
        is_small=len(largest) < 2 and elements <= SMALL_ELEMENTS,
        site=view.call_site,
        phase=view.record.phase,
    )
    return kind, elements
