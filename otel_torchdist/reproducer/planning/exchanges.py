"""Uneven exchanges: how much each rank of the script sends to each other one in an `all_to_all`, and gets from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import OperationId, OperationView
from otel_torchdist.model.collectives import EXCHANGES
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.reproducer.planning.cast import Cast
from otel_torchdist.reproducer.planning.substitutes import bytes_of
from otel_torchdist.reproducer.planning.tails import Event

Shape = tuple[int, ...]

LISTS: Final = "all_to_all"
_UNKNOWN_ITEM: Final = 4
"""Bytes of an element whose type is not recorded: `float32` is assumed."""


@dataclass(frozen=True, slots=True)
class ExchangedParts:
    """What a rank exchanges with the members of a group that have a rank in the script, in their order.

    Attributes:
        sent: Shapes of what it sends to each.
        received: Shapes of what it gets from each.
    """

    sent: tuple[Shape, ...]
    received: tuple[Shape, ...]


class UnevenExchanges:
    """The uneven exchanges among the last calls of ranks.

    Attributes:
        has_uneven_lists: Whether one of them is of lists, which gloo exchanges only if all tensors are alike.
        are_unknown: Whether it is not recorded how one of them is split.
    """

    def __init__(self, tails: Mapping[int, Sequence[Event]], cast: Cast) -> None:
        """Index them.

        Args:
            tails: By rank of the job that has a rank in the script, its last calls.
            cast: The ranks.
        """
        self._cast = cast
        self._calls: dict[OperationId, dict[int, OperationView]] = {}
        for rank, tail in tails.items():
            for view in (event.operation for event in tail):
                if view.name in EXCHANGES and view.operation_id.channel.kind is RecordKind.OPERATION:
                    self._calls.setdefault(view.operation_id, {})[rank] = view
        uneven = [view for calls in self._calls.values() for view in calls.values() if view.record.flags & Flag.UNEVEN]
        self.has_uneven_lists = any(view.name == LISTS and _listed(view) for view in uneven)
        self.are_unknown = any(not _listed(view) for view in uneven)

    def parts(self, rank: int, view: OperationView) -> ExchangedParts | None:
        """How a call is split; None if all ranks split it evenly, as far as that is known.

        A rank gets what the others send; of those whose call is not recorded, such as one that does not come, an even
        share of the rest of what it receives.

        Args:
            rank: The rank of the job that makes it.
            view: The call.
        """
        calls = self._calls.get(view.operation_id, {})
        if view.group is None or rank not in view.group.members or not any(map(_listed, calls.values())):
            return None
        members = sorted(view.group.members)
        sent = {sender: _sent(one, len(members)) for sender, one in calls.items()}
        place = members.index(rank)
        received = {sender: parts[place] for sender, parts in sent.items()}
        unknown = len(members) - len(received)
        share = max(_received(view) - sum(received.values()), 0) // unknown if unknown else 0
        kept = [member for member in members if self._cast.script_rank(member) is not None]
        return ExchangedParts(
            _shapes(view, [sent[rank][members.index(member)] for member in kept]),
            _shapes(view, [received.get(member, share) for member in kept]),
        )


def _listed(view: OperationView) -> bool:
    splits, group = view.record.splits, view.group
    return splits is not None and group is not None and len(splits.sent) == len(group.members)


def _sent(view: OperationView, members: int) -> tuple[int, ...]:
    """Elements that a rank sends to each member."""
    splits = view.record.splits
    if splits is not None and len(splits.sent) == members:
        return tuple(part // _item(view) for part in splits.sent)
    return (view.record.message_bytes // _item(view) // members,) * members


def _received(view: OperationView) -> int:
    """Elements that a rank receives from all members together."""
    splits = view.record.splits
    return (splits.received if splits is not None else view.record.message_bytes) // _item(view)


def _item(view: OperationView) -> int:
    names = view.signature.dtypes if view.signature is not None else ()
    return bytes_of(names[0]) if names else _UNKNOWN_ITEM


def _shapes(view: OperationView, elements: Sequence[int]) -> tuple[Shape, ...]:
    """Shapes of parts with so many elements: rows like those of the call's tensor, or flat."""
    shapes = view.signature.shapes if view.signature is not None else ()
    rest = tuple(shapes[0][1:]) if shapes and view.name != LISTS else ()
    row = math.prod(rest)
    if row <= 0 or any(count % row for count in elements):
        return tuple((count,) for count in elements)
    return tuple((count // row, *rest) for count in elements)
