"""The recorded calls of ranks, from their traces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from otel_torchdist.model.calls import UNREAD, Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.collectives import BARRIERS, MESSAGES, SEND, Contribution, operations_where
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, How, Phase, RecordKind
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.naming import compress_ranks
from otel_torchdist.model.operations import Operation, Splits, StepMark
from otel_torchdist.model.units import item_bytes
from otel_torchdist.sources.profiles.groups import ProfiledGroups
from otel_torchdist.sources.profiles.profile import NO_RANK, CallArguments, ProfiledCall, RankProfile, TraceKind
from otel_torchdist.tape.records.splits import MAX_LISTED

SHOWN_NAMES: Final = 8


def gaps_in(profiles: Iterable[RankProfile], groups: ProfiledGroups) -> Iterator[str]:
    """Describe how many calls have no known group, or no size, and why.

    Args:
        profiles: One for each rank.
        groups: The groups of the job.
    """
    nameless = total = sizeless = 0
    unknown: Counter[str] = Counter()
    users: set[int] = set()
    for profile in profiles:
        for arguments, calls in Counter(call.arguments for call in profile.calls).items():
            total += calls
            if arguments.elements is None and not arguments.shapes and arguments.operation not in BARRIERS:
                sizeless += calls
            if groups.group_of(profile, arguments, aligned=False) is not None:
                continue
            if arguments.group is None:
                nameless += calls
            else:
                unknown[arguments.group] += calls
                users.add(profile.rank)
    if nameless:
        yield (
            f"{nameless:,} of {total:,} calls are in no group that the traces name, as those of gloo, those of "
            "2023, and kernels alone: neither their bytes nor what they are for can be attributed"
        )
    if sizeless:
        yield (
            f"{sizeless:,} of {total:,} calls have no size: gloo's have one only in traces with shapes "
            "(`profile(record_shapes=True)`), kernels alone have none"
        )
    if unknown:
        names = ", ".join(sorted(unknown)[:SHOWN_NAMES]) + (", …" if len(unknown) > SHOWN_NAMES else "")
        yield (
            f"{unknown.total():,} of {total:,} calls, of ranks {compress_ranks(users)}, are in groups of which no "
            f"trace lists the members ({names}): they are left out"
        )


class ProfilePositions:
    """The positions in each group that all traces of its users hold."""

    def __init__(self, profiles: Iterable[RankProfile]) -> None:
        """Find, for each group, from where to where that is."""
        self._shared: dict[str, tuple[int, int]] = {}
        for profile in profiles:
            own: dict[str, tuple[int, int]] = {}
            for call in profile.calls:
                name, position = call.arguments.group, call.sequence
                if name is not None and position:
                    first, last = own.get(name, (position, position))
                    own[name] = (min(first, position), max(last, position))
            for name, (first, last) in own.items():
                known = self._shared.get(name, (first, last))
                self._shared[name] = (max(known[0], first), min(known[1], last))

    def is_shared(self, call: ProfiledCall) -> bool:
        """Whether the position of a call can be compared with those of other ranks."""
        name = call.arguments.group
        if name is None or not call.sequence:
            return False
        first, last = self._shared[name]
        return first <= call.sequence <= last


MAX_TENSORS: Final = 8
NO_TAG: Final = -1
UNCLEAR_TAG: Final = 1
"""Keeps calls whose position is not known apart from those that can be compared with other ranks'."""
_PHASES: Final = {None: Phase.UNKNOWN, True: Phase.BACKWARD, False: Phase.OUTSIDE_BACKWARD}
_REDUCING: Final = operations_where(lambda row: row.family.reduces)
_WITHOUT_BYTES: Final = operations_where(lambda row: row.contribution is Contribution.NOTHING)


def histories_of(profiles: Sequence[RankProfile], groups: ProfiledGroups) -> Iterator[RankHistory]:
    """Yield the history of each rank.

    Args:
        profiles: One for each rank.
        groups: The groups of the job.
    """
    positions = ProfilePositions(profiles)
    for profile in profiles:
        yield _history_of(profile, groups, positions)


def _history_of(profile: RankProfile, groups: ProfiledGroups, positions: ProfilePositions) -> RankHistory:
    operations = _operations(profile, groups, positions)
    return RankHistory(
        rank=profile.rank,
        world_size=groups.world_size,
        host=profile.host,
        wall_offset_ns=0,
        operations=tuple(operations),
        lost=0,
        # The clocks of processes on one host are one, and CUPTI gives times of devices on that clock.
        clock=f"host {profile.host}" if profile.host and profile.kind is TraceKind.PROFILER else "",
        groups=groups.groups_of(profile),
        steps=tuple(StepMark(nth, step.ended_ns, step.number, 0) for nth, step in enumerate(profile.steps, 1)),
    )


def _operations(profile: RankProfile, groups: ProfiledGroups, positions: ProfilePositions) -> Iterable[OperationView]:
    counts: dict[Channel, int] = {}
    for number, call in enumerate(profile.calls, 1):
        arguments = call.arguments
        aligned = positions.is_shared(call)
        group = groups.group_of(profile, arguments, aligned)
        peer = _peer_of(arguments, group)
        channel = _channel(profile.rank, arguments, group, peer, aligned)
        counts[channel] = counts.get(channel, 0) + 1
        sequence = call.sequence if aligned else counts[channel]
        yield _operation(number, call, group, peer, OperationId(channel, sequence))


def _operation(
    number: int, call: ProfiledCall, group: GroupView | None, peer: int, operation_id: OperationId
) -> OperationView:
    arguments = call.arguments
    flags = Flag.ON_DEVICE if arguments.on_device else Flag(0)
    if arguments.operation in MESSAGES:
        flags |= Flag.POINT_TO_POINT
    if arguments.is_uneven:
        flags |= Flag.UNEVEN
    ended_ns, is_timed = call.ended_ns, call.ended_ns is not None and call.started_ns is not None
    record = Operation(
        number=number,
        kind=RecordKind.OPERATION,
        entered_ns=call.entered_ns,
        step=call.step,
        sequence=operation_id.sequence,
        message_bytes=_bytes_of(arguments),
        group=0,
        signature=0,
        call_site=0,
        label=0,
        peer=peer,
        tag=operation_id.channel.tag,
        thread=call.thread,
        flags=flags,
        returned_ns=max(call.returned_ns, call.entered_ns),
        started_ns=call.started_ns,
        started_how=How.EVENT if is_timed else None,
        completed_ns=ended_ns if ended_ns is not None else call.returned_ns,
        how=How.EVENT if is_timed else How.UNTRACKED,
        phase=_PHASES[call.in_backward],
        splits=_splits(arguments),
    )
    return OperationView(
        record=record,
        name=arguments.operation,
        operation_id=operation_id,
        group=group,
        signature=_signature(arguments),
        call_site=None,
        label="",
        failure="",
        waiting_since_ns=None,
    )


def _peer_of(arguments: CallArguments, group: GroupView | None) -> int:
    """The global rank of the peer or root; -1 if there is none, or it is not known."""
    if arguments.global_peer != NO_RANK:
        return arguments.global_peer
    ranks = group.name.ranks if group is not None else ()
    return ranks[arguments.peer] if 0 <= arguments.peer < len(ranks) else NO_RANK


def _channel(rank: int, arguments: CallArguments, group: GroupView | None, peer: int, aligned: bool) -> Channel:
    key = group.key if group is not None else ""
    if arguments.operation in MESSAGES and peer != NO_RANK:
        source, destination = (rank, peer) if arguments.operation == SEND else (peer, rank)
        return Channel(RecordKind.OPERATION, key, source, destination, NO_TAG)
    return Channel(RecordKind.OPERATION, key) if aligned else Channel(RecordKind.OPERATION, key, tag=UNCLEAR_TAG)


@lru_cache(maxsize=65_536)
def _signature(arguments: CallArguments) -> SignatureName:
    shapes = arguments.shapes
    return SignatureName(
        operation=arguments.operation,
        reduce_op=arguments.reduce_op or (UNREAD if arguments.operation in _REDUCING else ""),
        shapes=shapes[:MAX_TENSORS],
        dtypes=(arguments.dtype,) if arguments.dtype else (),
        device="",
        tensors=len(shapes) or int(bool(arguments.elements)),
    )


@lru_cache(maxsize=65_536)
def _bytes_of(arguments: CallArguments) -> int:
    """What this rank contributes: nothing to a receive, and a barrier of NCCL reduces a tensor of its own."""
    if arguments.operation in _WITHOUT_BYTES:
        return 0
    elements = arguments.elements
    if elements is None:
        elements = sum(map(math.prod, arguments.shapes))
    return elements * item_bytes(arguments.dtype)


@lru_cache(maxsize=65_536)
def _splits(arguments: CallArguments) -> Splits | None:
    """How an uneven `all_to_all` is split, in bytes."""
    if not arguments.is_uneven or arguments.received is None:
        return None
    item, rows = item_bytes(arguments.dtype), sum(arguments.splits)
    # Traces count parts in rows of the tensor, whose length they do not have.
    unit = (arguments.elements or 0) * item // rows if rows else 0
    sent = tuple(part * unit for part in arguments.splits[:MAX_LISTED])
    is_whole = len(sent) == len(arguments.splits) and bool(rows)
    return Splits(sent if is_whole else (), max(sent, default=0), arguments.received * item)
