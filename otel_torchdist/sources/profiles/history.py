"""Call histories of ranks, from their traces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from otel_torchdist.model.calls import NO_TAG, UNREAD, Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.collectives import BARRIERS, MESSAGES, SEND, Contribution, operations_where
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, How, Phase, RecordKind
from otel_torchdist.model.names import MAX_TENSORS, SignatureName
from otel_torchdist.model.operations import Operation, Splits, StepMark
from otel_torchdist.model.text import compress_ranks, item_bytes
from otel_torchdist.sources.profiles.groups import ProfiledGroups
from otel_torchdist.sources.profiles.profile import NO_RANK, CallArguments, ProfiledCall, RankProfile, TraceKind
from otel_torchdist.tape.records.splits import MAX_LISTED

MAX_NAMES: Final = 8
"""Number of unknown groups named in a line."""


def gaps_in(profiles: Iterable[RankProfile], groups: ProfiledGroups) -> Iterator[str]:
    """Describe the calls without a known group or without a size: their number and the reasons.

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
            f"{nameless:,} of {total:,} calls have no group in the traces (calls of gloo, traces of 2023, kernels "
            "without a call): neither their bytes nor their purpose can be attributed"
        )
    if sizeless:
        yield (
            f"{sizeless:,} of {total:,} calls have no size: calls of gloo have one only in traces with shapes "
            "(`profile(record_shapes=True)`), kernels without a call never"
        )
    if unknown:
        names = ", ".join(sorted(unknown)[:MAX_NAMES]) + (", …" if len(unknown) > MAX_NAMES else "")
        yield (
            f"{unknown.total():,} of {total:,} calls, of ranks {compress_ranks(users)}, are left out: no trace lists "
            f"the members of their groups ({names})"
        )


class ProfilePositions:
    """For each group, the range of positions in the traces of all ranks that use it."""

    def __init__(self, profiles: Iterable[RankProfile]) -> None:
        """Intersect the ranges of all traces."""
        self._common: dict[str, tuple[int, int]] = {}
        for profile in profiles:
            ranges: dict[str, tuple[int, int]] = {}
            for call in profile.calls:
                name, position = call.arguments.group, call.sequence
                if name is not None and position:
                    first, last = ranges.get(name, (position, position))
                    ranges[name] = (min(first, position), max(last, position))
            for name, (first, last) in ranges.items():
                shared = self._common.get(name, (first, last))
                self._common[name] = (max(shared[0], first), min(shared[1], last))

    def is_comparable(self, call: ProfiledCall) -> bool:
        """Return whether the position of a call is comparable between ranks."""
        name = call.arguments.group
        if name is None or not call.sequence:
            return False
        first, last = self._common[name]
        return first <= call.sequence <= last


UNALIGNED_TAG: Final = 1
"""Tag of calls without a comparable position, to separate them from aligned calls."""
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
        # Processes of one host share a clock, and CUPTI converts device times to it.
        clock=f"host {profile.host}" if profile.host and profile.kind is TraceKind.PROFILER else "",
        groups=groups.groups_of(profile),
        steps=tuple(StepMark(nth, step.ended_ns, step.number, 0) for nth, step in enumerate(profile.steps, 1)),
    )


def _operations(profile: RankProfile, groups: ProfiledGroups, positions: ProfilePositions) -> Iterable[OperationView]:
    counts: dict[Channel, int] = {}
    for number, call in enumerate(profile.calls, 1):
        arguments = call.arguments
        aligned = positions.is_comparable(call)
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
    """Return the global rank of the peer or root; -1 if there is none, or unknown."""
    if arguments.global_peer != NO_RANK:
        return arguments.global_peer
    ranks = group.name.ranks if group is not None else ()
    return ranks[arguments.peer] if 0 <= arguments.peer < len(ranks) else NO_RANK


def _channel(rank: int, arguments: CallArguments, group: GroupView | None, peer: int, aligned: bool) -> Channel:
    key = group.key if group is not None else ""
    if arguments.operation in MESSAGES and peer != NO_RANK:
        source, destination = (rank, peer) if arguments.operation == SEND else (peer, rank)
        return Channel(RecordKind.OPERATION, key, source, destination, NO_TAG)
    return Channel(RecordKind.OPERATION, key) if aligned else Channel(RecordKind.OPERATION, key, tag=UNALIGNED_TAG)


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
    """Return the bytes that this rank contributes: 0 for a receive, and for NCCL's barrier with its internal tensor."""
    if arguments.operation in _WITHOUT_BYTES:
        return 0
    elements = arguments.elements
    if elements is None:
        elements = sum(map(math.prod, arguments.shapes))
    return elements * item_bytes(arguments.dtype)


@lru_cache(maxsize=65_536)
def _splits(arguments: CallArguments) -> Splits | None:
    """Return the splits of an uneven `all_to_all`, in bytes; None if even or unknown."""
    if not arguments.is_uneven or arguments.received is None:
        return None
    item, rows = item_bytes(arguments.dtype), sum(arguments.splits)
    # Traces give the parts in rows of the tensor, but not the length of a row.
    unit = (arguments.elements or 0) * item // rows if rows else 0
    sent = tuple(part * unit for part in arguments.splits[:MAX_LISTED])
    is_whole = len(sent) == len(arguments.splits) and bool(rows)
    return Splits(sent if is_whole else (), max(sent, default=0), arguments.received * item)
