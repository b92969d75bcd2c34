"""Operations of a tape with their names resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from otel_torchdist.model.calls import ANY_RANK, Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.collectives import SEND
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.names import NEW_GROUP, CallSiteName, LabelName, SignatureName
from otel_torchdist.model.operations import Operation
from otel_torchdist.tape.names.reader import Names, shown_path

_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)
"""A plain integer: arithmetic with enum members is several times slower."""


MAX_KNOWN: Final = 16_384
MAX_WORLD_RANKS: Final = 64
"""Maximum number of standalone process groups whose rank is kept. Some programs create one per update."""

_NameIds: TypeAlias = tuple[RecordKind, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Names:
    """The names behind the ids in a record; see `OperationView`."""

    operation: str
    group: GroupView | None
    signature: SignatureName | None
    call_site: CallSiteName | None
    label: str
    label_name: LabelName | None
    path: tuple[str, ...]


class ResolvedNames:
    """Resolves the references of a tape's records: groups, signatures, call sites.

    Attributes:
        groups: The resolved groups by key. A new group replaces the mapping.
        world_ranks: See `RankView`. A new rank replaces the mapping.
    """

    def __init__(self, names: Names, rank: int, world: str = "") -> None:
        """Resolve references with a rank's name dictionary.

        Args:
            names: The dictionary.
            rank: The rank.
            world: The world to which `rank` belongs; see `TapeIdentity`.
        """
        self._names = names
        self._rank = rank
        self._world = world
        self._groups: dict[int, GroupView] = {}
        self._known: dict[_NameIds, _Names] = {}
        self._collectives: dict[tuple[RecordKind, int], Channel] = {}
        self._renamed = names.renamed
        self.groups: Mapping[str, GroupView] = MappingProxyType({})
        self.world_ranks: Mapping[str, int] = MappingProxyType({})

    def operation(self, operation: Operation, tolerance_ns: int = 0, longest_ns: int = 0) -> OperationView:
        """Resolve an operation; see `OperationView` for `tolerance_ns` and `longest_ns`."""
        if self._names.renamed != self._renamed:
            self._forget_groups()
        key = (operation.kind, operation.group, operation.signature, operation.call_site, operation.label)
        names = self._known.get(key) or self._resolve(key, operation)
        name = names.label_name
        return OperationView(
            record=operation,
            name=names.operation,
            operation_id=OperationId(self._channel(operation, names), operation.sequence),
            group=names.group,
            signature=names.signature,
            call_site=names.call_site,
            label=name.text(operation.piece) if name is not None and operation.piece else names.label,
            path=names.path,
            failure=(self._names.text(operation.failure) or "") if operation.failure else "",
            waiting_since_ns=operation.waiting_since_ns,
            caller=self.caller(operation),
            tolerance_ns=tolerance_ns,
            longest_ns=longest_ns,
        )

    def _forget_groups(self) -> None:
        """Resolve groups again, after a device mesh has renamed some."""
        self._renamed = self._names.renamed
        self._groups.clear()
        self._known.clear()

    def _resolve(self, key: _NameIds, operation: Operation) -> _Names:
        names = self._names
        resolved_names = _Names(
            operation=self._name(operation),
            group=self.group(operation.group),
            signature=names.signature(operation.signature),
            call_site=names.call_site(operation.call_site),
            label=names.label(operation.label) or "",
            label_name=names.label_name(operation.label),
            path=shown_path(names, operation.call_site),
        )
        resolved = (
            resolved_names.group,
            resolved_names.signature,
            resolved_names.call_site,
            resolved_names.label or None,
        )
        if not any(identity and name is None for identity, name in zip(key[1:], resolved, strict=True)):
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            self._known[key] = resolved_names  # missing names may still come
        return resolved_names

    def caller(self, operation: Operation) -> str:
        """Return the name of the function run by an operation's thread; '' if unknown."""
        return self._names.caller(operation.caller)

    def channel(self, operation: Operation) -> Channel:
        """Return the channel of an operation."""
        if not int(operation.flags) & _POINT_TO_POINT:
            return self._channel_of_group(operation)
        key = (operation.kind, operation.group, operation.signature, operation.call_site, operation.label)
        return self._channel(operation, self._known.get(key) or self._resolve(key, operation))

    def _channel(self, operation: Operation, names: _Names) -> Channel:
        if not int(operation.flags) & _POINT_TO_POINT:
            return self._channel_of_group(operation)
        key = names.group.key if names.group is not None else ""
        own, peer = self._rank, operation.peer
        if names.group is not None and names.group.name.world:
            own = names.group.name.world_rank
        if names.operation == SEND:
            return Channel(operation.kind, key, own, peer, operation.tag)
        return Channel(operation.kind, key, ANY_RANK if peer < 0 else peer, own, operation.tag)

    def _channel_of_group(self, operation: Operation) -> Channel:
        """Return the channel of a collective or rendezvous, by group alone: signatures may never repeat."""
        known = self._collectives.get((operation.kind, operation.group))
        if known is not None:
            return known
        group = self.group(operation.group)
        if group is None:
            return Channel(operation.kind, "")
        channel = self._collectives[operation.kind, operation.group] = Channel(operation.kind, group.key)
        return channel

    def group(self, identity: int) -> GroupView | None:
        """Return a group; None if the dictionary does not contain it."""
        known = self._groups.get(identity)
        if known is not None:
            return known
        name = self._names.group(identity)
        if name is None:
            return None
        if name.world in ("", self._world):
            view = GroupView(name.key, name, frozenset(name.ranks))
        else:  # other members are not ranks of this run: see `joining`
            view = GroupView(name.key, name, frozenset((self._rank,)), is_inferred=True)
        self._groups[identity] = view
        if name.world:
            latest = [*self.world_ranks.items()][1 - MAX_WORLD_RANKS :]
            self.world_ranks = MappingProxyType({**dict(latest), view.key: name.world_rank})
        known = self.groups.get(view.key)
        # A group inferred only from messages may not be aligned.
        if known is None or name.aligned or not known.name.aligned:
            self.groups = MappingProxyType({**self.groups, view.key: view})
        return view

    def parameters(self, identity: int) -> tuple[str, ...]:
        """Return the names of parameters; empty if the dictionary does not contain them."""
        return self._names.parameters(identity) if identity else ()

    def _name(self, operation: Operation) -> str:
        signature = self._names.signature(operation.signature)
        if signature is not None:
            return signature.operation
        return NEW_GROUP if operation.kind is RecordKind.RENDEZVOUS else "operation"
