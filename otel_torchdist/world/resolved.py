"""Operations of a tape with their names resolved."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records import Operation
from otel_torchdist.world.model import ANY_RANK, Channel, GroupView, OperationId, OperationView

_SEND: Final = "send"
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)
"""A plain integer: arithmetic with enum members is several times slower."""


class ResolvedNames:
    """Resolves what a tape's records only refer to: groups, signatures, call sites.

    Attributes:
        groups: The groups that were resolved so far, by their key. A new one makes a new mapping.
    """

    def __init__(self, reader: TapeReader) -> None:
        self._names = reader.names
        self._rank = reader.identity.rank
        self._groups: dict[int, GroupView] = {}
        self.groups: Mapping[str, GroupView] = MappingProxyType({})

    def operation(self, operation: Operation, tolerance_ns: int = 0) -> OperationView:
        """Resolve an operation; see `OperationView` for `tolerance_ns`."""
        names = self._names
        signature = names.signature(operation.signature)
        return OperationView(
            record=operation,
            name=self._name(operation),
            operation_id=OperationId(self.channel(operation), operation.sequence),
            group=self.group(operation.group),
            signature=signature,
            call_site=names.call_site(operation.call_site),
            label=names.text(operation.label) or "",
            failure=names.text(operation.failure) or "",
            waiting_since_ns=operation.waiting_since_ns,
            tolerance_ns=tolerance_ns,
        )

    def channel(self, operation: Operation) -> Channel:
        """The channel of an operation."""
        group = self.group(operation.group)
        key = group.key if group is not None else ""
        if not int(operation.flags) & _POINT_TO_POINT:
            return Channel(operation.kind, key)
        here, peer = self._rank, operation.peer
        if self._name(operation) == _SEND:
            return Channel(operation.kind, key, here, peer, operation.tag)
        return Channel(operation.kind, key, ANY_RANK if peer < 0 else peer, here, operation.tag)

    def group(self, identity: int) -> GroupView | None:
        """A group; None if the dictionary does not contain it."""
        known = self._groups.get(identity)
        if known is not None:
            return known
        name = self._names.group(identity)
        if name is None:
            return None
        self._groups[identity] = view = GroupView(name.key, name, frozenset(name.ranks))
        self.groups = MappingProxyType({**self.groups, view.key: view})
        return view

    def _name(self, operation: Operation) -> str:
        signature = self._names.signature(operation.signature)
        if signature is not None:
            return signature.operation
        return "new_group" if operation.kind is RecordKind.RENDEZVOUS else "operation"
