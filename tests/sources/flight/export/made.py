"""Histories of calls, made by a test instead of being read from tapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

import msgspec

from otel_torchdist.model.calls import Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.operations import Operation

SECOND: Final = 1_000_000_000
WALL_NS: Final = 1_700_000_000 * SECOND
SITE: Final = CallSiteName("step", "/home/ada/train.py", 7)
FOUR: Final = ((4,),)


def group(*ranks: int, name: str = "0", description: str = "default_pg", nth: int = 0, **more: object) -> GroupView:
    """A group."""
    found = GroupName(name, description, ranks, nth, str(more.get("backend", "gloo")), bool(more.get("aligned", True)))
    return GroupView(found.key, found, frozenset(ranks))


WORLD: Final = group(0, 1, 2)


def call(
    sequence: int = 1,
    name: str = "all_reduce",
    of: GroupView | None = WORLD,
    *,
    at: int = 0,
    ends: int | None = 1,
    how: How = How.WAIT,
    shapes: tuple[tuple[int, ...], ...] = FOUR,
    dtypes: tuple[str, ...] = ("float32",),
    tensors: int = 1,
    root: int = -1,
    kind: RecordKind = RecordKind.OPERATION,
    device: str = "cpu",
) -> OperationView:
    """A collective; `at` in seconds, `ends` as many seconds later or never."""
    channel = Channel(kind, of.key if of is not None else "")
    signature = SignatureName(name, "", shapes, dtypes, device, tensors)
    return _view(channel, sequence, name, of, at, ends, how, signature, root)


def message(
    source: int, destination: int, sequence: int = 1, *, by: int, tag: int = 0, of: GroupView = WORLD
) -> OperationView:
    """A `send` or `recv`, whichever the rank `by` calls; `source` is -1 where it receives from any rank."""
    name = "send" if by == source else "recv"
    channel = Channel(RecordKind.OPERATION, of.key, source, destination, tag)
    signature = SignatureName(name, "", FOUR, ("float32",), "cpu", 1)
    peer = destination if by == source else source
    return _view(channel, sequence, name, of, 0, 1, How.WAIT, signature, peer, Flag.POINT_TO_POINT)


def history(rank: int, operations: Iterable[OperationView], lost: int = 0, until: int = 0) -> RankHistory:
    """What a rank has called; numbers follow the order, after those that are lost."""
    numbered = [_numbered(operation, lost + nth) for nth, operation in enumerate(operations, 1)]
    return RankHistory(rank, 3, "vm", WALL_NS, tuple(numbered), lost, until_ns=until * SECOND)


def _numbered(operation: OperationView, number: int) -> OperationView:
    return dataclasses.replace(operation, record=msgspec.structs.replace(operation.record, number=number))


def _view(
    channel: Channel,
    sequence: int,
    name: str,
    of: GroupView | None,
    at: int,
    ends: int | None,
    how: How,
    signature: SignatureName,
    peer: int,
    flags: int = 0,
) -> OperationView:
    completed_ns = (at + ends) * SECOND if ends is not None else None
    record = Operation(
        number=0, kind=channel.kind, entered_ns=at * SECOND, step=0, sequence=sequence, message_bytes=16, group=1,
        signature=2, call_site=3, label=0, peer=peer, tag=channel.tag, thread=9, flags=Flag(flags),
        completed_ns=completed_ns, how=how if completed_ns is not None else None,
    )  # fmt: skip
    return OperationView(record, name, OperationId(channel, sequence), of, signature, SITE, "", "", None)
