"""Makes dumps from call histories."""

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
from otel_torchdist.model.text import item_bytes
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

# In the dumps of a job, all members use the same name for a group, and names are unique.
#
# Messages from one rank to another with one tag form a separate group. In a larger group, `torchfrtrace` reports all
# other members as missing from a `send`; and sender and receiver count alike only per direction and tag.

_UNDEFINED = "undefined"
"""torch's description of a group without a description."""


@dataclass(frozen=True, slots=True)
class NumberedGroup:
    """A group in dumps.

    Attributes:
        number: Its `pg_id`, the same on all ranks.
        group: Its name, description and members.
    """

    number: int
    group: FlightGroup


def groups_of(operations: Iterable[OperationView]) -> dict[Channel, NumberedGroup]:
    """Return the named and numbered groups of these operations, by channel."""
    channels: dict[Channel, GroupView] = {}
    for operation in operations:  # lowest rank first: the label of a group may differ between ranks
        if operation.group is not None:
            channels.setdefault(operation.operation_id.channel, operation.group)
    names = _names({view.key: view for view in channels.values()})
    ordered = sorted(
        channels, key=lambda channel: (names[channel.group], channel.source, channel.destination, channel.tag)
    )
    return {
        channel: NumberedGroup(number, _group(channel, channels[channel], names[channel.group]))
        for number, channel in enumerate(ordered)
    }


def _names(views: dict[str, GroupView]) -> dict[str, str]:
    """Return the name of each group by its key. Duplicate names get the key as a suffix."""
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
    members = tuple(sorted({channel.source, channel.destination}))
    return FlightGroup(f"{name} p2p {channel.source}->{channel.destination}{tag}", description, members)


Shape = tuple[int, ...]

NOTHING: Final[Shape] = (0,)
"""Shape, on other ranks, of a tensor that only the root has."""


class Sides(NamedTuple):
    """Shapes of the tensors on both sides of an operation."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


def sides_of(operation: str, shapes: tuple[Shape, ...], members: int, is_root: bool) -> Sides:
    """Return the shapes on both sides. The tape records one side, and the other is computed.

    An `all_to_all` is assumed to be even; see `uneven_sides` for uneven exchanges.

    Args:
        operation: Our name of the operation.
        shapes: Shapes on the tape, one per tensor.
        members: Number of ranks of the group.
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


def uneven_sides(shape: Shape, received: int) -> Sides:
    """Return the sizes of an uneven `all_to_all` of one tensor.

    Args:
        shape: Shape of the sent tensor, whose rows are split among the members.
        received: Number of received elements.
    """
    row = math.prod(shape[1:])
    is_whole = bool(shape) and row > 0 and received % row == 0
    return Sides((shape,), ((received // row, *shape[1:]) if is_whole else (received,),))


def _concatenated(shape: Shape, members: int) -> Shape:
    return (shape[0] * members, *shape[1:]) if shape else (members,)


def _share(shape: Shape, members: int) -> Shape:
    """Return the shape of a rank's share of a tensor; flat if the first dimension is not divisible."""
    if shape and shape[0] % members == 0:
        return (shape[0] // members, *shape[1:])
    return (math.prod(shape) // members,)


VERSION: Final = (2, 10)
"""Version written by torch 2.13 to 2.15."""
_EXCHANGE: Final = "all_to_all_single"
"""The only exchange exported as uneven: analyses compare only the first tensor of a list, which differs if uneven."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Dumps made from the calls of a job.

    Attributes:
        dumps: One for each rank, ascending.
        left_out: Calls that are not in the dumps.
        renamed: Library names written in place of backends that `torchfrtrace` does not accept, by backend.
    """

    dumps: tuple[FlightDump, ...]
    left_out: LeftOut
    renamed: Mapping[str, str]


def dumps_of(histories: Sequence[RankHistory], choice: ExportChoice) -> Exported:
    """Make a dump for each history.

    Args:
        histories: Histories of ranks of one job, ascending.
        choice: The calls to write.
    """
    positions = Positions(histories, choice)
    operations = (operation for calls in positions.calls.values() for _, operation in sorted(calls.items()))
    groups = groups_of(operations)
    # Sizes are written for all members at a position, or for none.
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
    """Return whether the shapes of a call were not recorded, because the tape's dictionary was full."""
    signature = operation.signature
    return signature is not None and signature.tensors > 0 and not signature.shapes


def _shows_received(operation: OperationView) -> bool:
    """Return whether the bytes received in an `all_to_all` are known. Analyses sum them over all members."""
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
        groups = {
            channel: numbered for channel, numbered in self._groups.items() if history.rank in numbered.group.ranks
        }
        return FlightDump(
            rank=history.rank,
            path="",
            version=VERSION,
            library_version="",
            groups={numbered.group.name: numbered.group for numbered in groups.values()},
            statuses=self._statuses(groups),
            # From 0 on every rank: torchfrtrace drops entries below the highest first number of any rank.
            entries=tuple(self._entry(number, operation) for number, operation in enumerate(self._operations)),
            until_ns=history.until_ns + history.wall_offset_ns if history.until_ns else None,
        )

    def _statuses(self, groups: Mapping[Channel, NumberedGroup]) -> dict[int, GroupStatus]:
        numbers = {channel: numbered.number for channel, numbered in groups.items()}
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
            operation_number=record.sequence,
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
            timeout_ms=None,  # tapes do not record it
            is_p2p=is_p2p,
            thread=str(record.thread),
            frames=(operation.call_site,) if operation.call_site is not None else (),
        )

    def _is_open(self, operation: OperationView) -> bool:
        """Return whether a call has not ended, or is the failed last call of the rank."""
        record = operation.record
        if record.completed_ns is None:
            return True
        return record.how in RAISED and record.number == self._history.operations[-1].record.number

    def _tensors(self, operation: OperationView, members: int) -> tuple[Sides, tuple[str, ...]]:
        """Return the shapes on both sides, and a dtype for each tensor."""
        signature = operation.signature
        if operation.operation_id in self._unsized or signature is None:
            return Sides((NOTHING,), (NOTHING,)), ()
        splits, dtypes = operation.record.splits, tuple(map(recorded_dtype, signature.dtypes))
        if splits is not None and operation.operation_id in self._uneven and signature.shapes:
            return uneven_sides(signature.shapes[0], splits.received // item_bytes(signature.dtypes[0])), dtypes
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
    """Return the duration of an operation on its device; None if unknown."""
    record = operation.record
    if not record.flags & Flag.ON_DEVICE or record.started_ns is None or record.completed_ns is None:
        return None
    return (record.completed_ns - record.started_ns) / 1e6
