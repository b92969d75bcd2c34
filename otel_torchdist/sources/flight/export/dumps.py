"""Makes dumps from histories of calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_torchdist.model.calls import Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.collectives import COLLECTIVES, EXCHANGES, SEND, Waiting
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.operations import RAISED, UNMET
from otel_torchdist.model.units import item_bytes
from otel_torchdist.sources.flight.dump import (
    EntryState,
    FlightDump,
    FlightEntry,
    FlightGroup,
    GroupStatus,
    backend_on,
    recorded_dtype,
    recorded_library,
    recorded_operation,
)
from otel_torchdist.sources.flight.export.selection import ExportChoice, LeftOut, Positions, in_order

# The groups of a job as dumps name them: one name for all members, and no name twice.
#
# Each direction between two ranks that send gets a group of its own. In a group of more than two, `torchfrtrace`
# takes all others for missing that take no part in a `send`; and only for each direction and tag do both sides count
# alike.

_UNDEFINED = "undefined"
"""What torch writes for a group without a description."""


@dataclass(frozen=True, slots=True)
class NumberedGroup:
    """A group in dumps.

    Attributes:
        number: Its `pg_id`; here it is the same on all ranks.
        group: Its name, description and members.
    """

    number: int
    group: FlightGroup


def groups_of(operations: Iterable[OperationView]) -> dict[Channel, NumberedGroup]:
    """Name the groups of these operations, by their channels."""
    channels: dict[Channel, GroupView] = {}
    for operation in operations:  # of the lowest rank first: a group may have another label on each
        if operation.group is not None:
            channels.setdefault(operation.operation_id.channel, operation.group)
    names = _names({view.key: view for view in channels.values()})
    ordered = sorted(channels, key=lambda one: (names[one.group], one.source, one.destination, one.tag))
    return {
        channel: NumberedGroup(number, _group(channel, channels[channel], names[channel.group]))
        for number, channel in enumerate(ordered)
    }


def _names(views: dict[str, GroupView]) -> dict[str, str]:
    """By key, the group's name; with the key where another group has that name."""
    taken: set[str] = set()
    names: dict[str, str] = {}
    for key, view in sorted(views.items(), key=lambda item: (item[1].name.nth, item[0])):
        name = view.name.name or key
        names[key] = f"{name} {key}" if name in taken else name
        taken.add(name)
    return names


def _group(channel: Channel, view: GroupView, name: str) -> FlightGroup:
    description = view.name.description or _UNDEFINED
    if not channel.is_point_to_point:
        return FlightGroup(name, description, view.name.ranks)
    tag = f" tag {channel.tag}" if channel.tag else ""
    between = tuple(sorted({channel.source, channel.destination}))
    return FlightGroup(f"{name} p2p {channel.source}->{channel.destination}{tag}", description, between)


Shape = tuple[int, ...]

NOTHING: Final[Shape] = (0,)
"""What only the root has, on other ranks."""


class Sides(NamedTuple):
    """Shapes of the tensors on both sides of an operation."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


def sides_of(operation: str, shapes: tuple[Shape, ...], members: int, is_root: bool) -> Sides:
    """Compute the side that the tape does not describe.

    What a rank receives in an `all_to_all` is taken to be as large as what it sends; see `exchanged` for uneven ones.

    Args:
        operation: Our name of the operation.
        shapes: Those on the tape, a shape for each tensor.
        members: How many ranks the group has.
        is_root: Whether this rank is the root, if there is one.
    """
    row = COLLECTIVES.get(operation)
    if row is None:
        return Sides(shapes, shapes)
    if row.describes_share:  # the output is on the tape
        has_input = is_root or not row.family.is_rooted
        return Sides(tuple((members, *shape) for shape in shapes) if has_input else (NOTHING,), shapes)
    if row.family.waiting is Waiting.ROOT and not row.family.reduces and not is_root:
        return Sides(shapes, (NOTHING,))
    if row.family.is_in_place or row.name in EXCHANGES:
        return Sides(shapes, shapes)
    if row.family.has_input_parts:
        return Sides(shapes, tuple(_share(shape, members) for shape in shapes))
    if row.is_flat or row.is_coalesced:
        return Sides(shapes, tuple(_concatenated(shape, members) for shape in shapes))
    return Sides(shapes, tuple((members, *shape) for shape in shapes))


def exchanged(shape: Shape, received: int) -> Sides:
    """Return the sizes of an uneven `all_to_all` of one tensor.

    Args:
        shape: What a rank sends; its rows are split among the members.
        received: How many elements it receives.
    """
    row = math.prod(shape[1:])
    is_whole = bool(shape) and row > 0 and received % row == 0
    return Sides((shape,), ((received // row, *shape[1:]) if is_whole else (received,),))


def _concatenated(shape: Shape, members: int) -> Shape:
    return (shape[0] * members, *shape[1:]) if shape else (members,)


def _share(shape: Shape, members: int) -> Shape:
    """Return a rank's share of a tensor; flat if that is not a part of its first dimension."""
    if shape and shape[0] % members == 0:
        return (shape[0] // members, *shape[1:])
    return (math.prod(shape) // members,)


VERSION: Final = (2, 10)
"""That of torch 2.13 to 2.15."""
_EXCHANGE: Final = "all_to_all_single"
"""Of lists of tensors, analyses compare the first one alone, which uneven lists do not have in common."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Dumps made from the calls of a job.

    Attributes:
        dumps: One for each rank, ascending.
        left_out: Calls that are not in them.
        renamed: By the backend of a call, the library that is written instead.
    """

    dumps: tuple[FlightDump, ...]
    left_out: LeftOut
    renamed: Mapping[str, str]


def dumps_of(histories: Sequence[RankHistory], choice: ExportChoice) -> Exported:
    """Make a dump for each history.

    Args:
        histories: Of ranks of one job, ascending.
        choice: Which calls are written.
    """
    positions = Positions(histories, choice)
    operations = (one for calls in positions.calls.values() for _, one in sorted(calls.items()))
    groups = groups_of(operations)
    unsized = frozenset(
        position for position, calls in positions.calls.items() if any(map(_lacks_sizes, calls.values()))
    )
    uneven = frozenset(
        position for position, calls in positions.calls.items() if all(map(_shows_received, calls.values()))
    )
    writers = [_RankWriter(history, positions, groups, unsized, uneven) for history in histories]
    dumps = tuple(writer.dump() for writer in writers)
    renamed = {name: library for writer in writers for name, library in writer.renamed.items()}
    return Exported(dumps, positions.left_out, renamed)


def _lacks_sizes(operation: OperationView) -> bool:
    """Whether the sizes of a call were not recorded, because the tape's dictionary was full."""
    signature = operation.signature
    return signature is not None and signature.tensors > 0 and not signature.shapes


def _shows_received(operation: OperationView) -> bool:
    """Whether it is known how much the rank receives in an `all_to_all`: analyses add up what all members do."""
    record = operation.record
    return operation.name == _EXCHANGE and (record.splits is not None or not record.flags & Flag.UNEVEN)


class _RankWriter:
    """Makes the dump of one rank."""

    def __init__(
        self,
        history: RankHistory,
        positions: Positions,
        groups: Mapping[Channel, NumberedGroup],
        unsized: frozenset[OperationId],
        uneven: frozenset[OperationId],
    ) -> None:
        self._history = history
        self._operations = tuple(in_order(positions, history))
        self._groups = groups
        self._unsized = unsized
        self._uneven = uneven
        self.renamed: dict[str, str] = {}

    def dump(self) -> FlightDump:
        """Return the dump."""
        history = self._history
        own = {channel: one for channel, one in self._groups.items() if history.rank in one.group.ranks}
        return FlightDump(
            rank=history.rank,
            path="",
            version=VERSION,
            library_version="",
            groups={one.group.name: one.group for one in own.values()},
            statuses=self._statuses(own),
            # From 0 on every rank: torchfrtrace leaves out what is below the highest first number of any rank.
            entries=tuple(self._entry(number, operation) for number, operation in enumerate(self._operations)),
            until_ns=history.until_ns + history.wall_offset_ns if history.until_ns else None,
        )

    def _statuses(self, own: Mapping[Channel, NumberedGroup]) -> dict[int, GroupStatus]:
        numbers = {channel: one.number for channel, one in own.items()}
        enqueued, started, completed = (dict.fromkeys(numbers.values(), -1) for _ in range(3))
        for operation in self._history.operations:
            number, record = numbers.get(operation.operation_id.channel), operation.record
            if number is None:
                continue
            sequence, has_ended = record.sequence, record.completed_ns is not None
            enqueued[number] = max(enqueued[number], sequence)
            if has_ended or record.started_ns is not None:
                started[number] = max(started[number], sequence)
            if has_ended and record.how not in RAISED:
                completed[number] = max(completed[number], sequence)
        return {number: GroupStatus(enqueued[number], started[number], completed[number]) for number in enqueued}

    def _entry(self, number: int, operation: OperationView) -> FlightEntry:
        record, group = operation.record, self._groups[operation.operation_id.channel]
        offset_ns = self._history.wall_offset_ns
        is_open = self._is_open(operation)
        is_end_known = not is_open and record.how not in UNMET
        started_ns = record.started_ns
        is_p2p = operation.operation_id.channel.is_point_to_point
        sides, dtypes = self._tensors(operation, len(group.group.ranks))
        return FlightEntry(
            record_id=number,
            pg_id=group.number,
            group=group.group.name,
            description=group.group.description,
            sequence=record.sequence,
            p2p_sequence=record.sequence if is_p2p else 0,
            operation=record.sequence,
            profiling_name=self._profiling_name(operation, group.group),
            created_ns=record.entered_ns + offset_ns,
            started_ns=started_ns + offset_ns if started_ns is not None else None,
            completed_ns=record.completed_ns + offset_ns if is_end_known and record.completed_ns is not None else None,
            duration_ms=_duration_ms(operation) if is_end_known else None,
            state=_state(is_open, started_ns),
            retired=not is_open,
            input_sizes=sides.inputs,
            input_dtypes=dtypes[: len(sides.inputs)],
            output_sizes=sides.outputs,
            output_dtypes=dtypes[: len(sides.outputs)],
            timeout_ms=None,  # it is not on the tape
            is_p2p=is_p2p,
            thread=str(record.thread),
            frames=(operation.call_site,) if operation.call_site is not None else (),
        )

    def _is_open(self, operation: OperationView) -> bool:
        """Whether a call has not ended, or was the last of a rank that failed in it."""
        record = operation.record
        if record.completed_ns is None:
            return True
        return record.how in RAISED and record.number == self._history.operations[-1].record.number

    def _tensors(self, operation: OperationView, members: int) -> tuple[Sides, tuple[str, ...]]:
        """Return the sizes on both sides, and a dtype for each tensor."""
        signature = operation.signature
        if operation.operation_id in self._unsized or signature is None:
            return Sides((NOTHING,), (NOTHING,)), ()
        splits, dtypes = operation.record.splits, tuple(map(recorded_dtype, signature.dtypes))
        if splits is not None and operation.operation_id in self._uneven and signature.shapes:
            return exchanged(signature.shapes[0], splits.received // item_bytes(signature.dtypes[0])), dtypes
        is_root = operation.record.peer == self._history.rank
        sides = sides_of(operation.name, signature.shapes, members, is_root)
        return sides, dtypes * len(signature.shapes) if len(dtypes) == 1 else dtypes

    def _profiling_name(self, operation: OperationView, group: FlightGroup) -> str:
        device = operation.signature.device if operation.signature is not None else ""
        backend = backend_on(operation.group.name.backend if operation.group is not None else "", device)
        library = recorded_library(backend)
        if library != backend:
            self.renamed[backend] = library
        name = f"{library}:{recorded_operation(operation.name)}"
        channel = operation.operation_id.channel
        if not channel.is_point_to_point:
            return name
        source, destination = group.ranks.index(channel.source), group.ranks.index(channel.destination)
        is_send = operation.name == SEND
        return f"{name} {source}->{destination}" if is_send else f"{name} {destination}<-{source}"


def _state(is_open: bool, started_ns: int | None) -> EntryState:
    if not is_open:
        return EntryState.COMPLETED
    return EntryState.SCHEDULED if started_ns is None else EntryState.STARTED


def _duration_ms(operation: OperationView) -> float | None:
    """Return the time that an operation ran on a device."""
    record = operation.record
    if not record.flags & Flag.ON_DEVICE or record.started_ns is None or record.completed_ns is None:
        return None
    return (record.completed_ns - record.started_ns) / 1e6
