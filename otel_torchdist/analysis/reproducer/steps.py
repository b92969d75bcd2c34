"""Translates the calls and groups of the job's ranks to steps of the script's ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.analysis.reproducer.calls import OPERATIONS
from otel_torchdist.analysis.reproducer.rank_mapping import RankMapping
from otel_torchdist.analysis.reproducer.script import (
    DEFAULT_GROUP,
    Create,
    CreateExtra,
    ScriptCall,
    ScriptGroup,
    ScriptWait,
    Step,
)
from otel_torchdist.analysis.reproducer.sizes import (
    ALL_TO_ALL_LISTS,
    PARTED,
    ScriptSizes,
    UnevenExchanges,
    dtype_substitutes,
    operation_substitutes,
    reduce_op_substitutes,
    sizes_for,
)
from otel_torchdist.analysis.reproducer.tails import Event
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.model.calls import UNREAD, GroupView, OperationView
from otel_torchdist.model.collectives import BARRIERS, ROOTED, operations_where
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, GroupName

MAX_DIGITS: Final = 9


def groups_for(views: Iterable[GroupView], mapping: RankMapping, world_size: int) -> Mapping[str, ScriptGroup]:
    """Map the keys of the job's groups to the script's groups, in order of creation.

    Args:
        views: The groups that matter.
        mapping: The mapping between the job's ranks and the script's ranks.
        world_size: Number of ranks in the job; 0 if unknown.
    """
    groups: dict[str, ScriptGroup] = {}
    for view in sorted({view.key: view for view in views}.values(), key=_created):
        members = tuple(place for place, rank in enumerate(mapping.kept) if rank in view.members)
        is_default = _is_default(view.name, world_size)
        number = DEFAULT_GROUP if is_default else 1 + sum(group.number > 0 for group in groups.values())
        groups[view.key] = ScriptGroup(number, members, view.label)
    return groups


def default_group(mapping: RankMapping) -> ScriptGroup:
    """Return the script's default group."""
    return ScriptGroup(DEFAULT_GROUP, tuple(range(len(mapping.kept))))


def number_of(view: GroupView) -> int | None:
    """Return the number in torch's name of a group, which counts creations; None if the name is a hash."""
    name = view.name.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) < MAX_DIGITS else None


def _created(view: GroupView) -> tuple[int, int, str, str]:
    number = number_of(view)
    return 10**MAX_DIGITS if number is None else number, view.name.nth, view.label, view.key


def _is_default(name: GroupName, world_size: int) -> bool:
    """Return whether this is the default group: the first one with all ranks."""
    if name.description == DEFAULT_DESCRIPTION:
        return True
    return name.nth == 0 and world_size > 0 and len(name.ranks) == world_size and not name.description


MAX_TENSORS: Final = 4_096
MAX_EXTRA_GROUPS: Final = 4_096
UNKNOWN_SHAPE: Final = (4,)
_REDUCING: Final = operations_where(lambda row: row.family.reduces)


@dataclass(frozen=True, slots=True)
class Substitutions:
    """The differences from the job, due to limits of gloo or of the machine, or to missing records.

    Attributes:
        operations: Replaced operations.
        dtypes: Replaced types.
        reduce_ops: Replaced reduce ops.
        sizes: The reduction of tensor sizes.
        without_shapes: Whether shapes of calls are not recorded.
        without_reduce_ops: Whether reduce ops of calls are not recorded.
        without_roots: Whether roots of calls are not recorded, or have no rank in the script.
        without_splits: Whether split sizes of uneven exchanges are not recorded.
    """

    operations: Mapping[str, str]
    dtypes: Mapping[str, str]
    reduce_ops: Mapping[str, str]
    sizes: ScriptSizes
    without_shapes: bool
    without_reduce_ops: bool
    without_roots: bool
    without_splits: bool


class StepWriter:
    """Writes the steps of ranks.

    Attributes:
        substitutions: The differences from the job.
    """

    def __init__(
        self,
        tails: Mapping[int, Sequence[Event]],
        mapping: RankMapping,
        groups: Mapping[str, ScriptGroup],
        earliest: int | None,
    ) -> None:
        """Choose the substitutes, which depend on all calls.

        Args:
            tails: The last calls of the job's ranks that have a rank in the script.
            mapping: The mapping between the job's ranks and the script's ranks.
            groups: The script's groups, by the job's keys.
            earliest: The lowest number that torch gave to a group created in the tails; None if torch gave no numbers.
        """
        self._mapping, self._groups, self._earliest = mapping, groups, earliest
        views = [event.operation for tail in tails.values() for event in tail]
        calls = [view for view in views if view.operation_id.channel.kind is RecordKind.OPERATION]
        signatures = [view.signature for view in calls if view.signature is not None]
        self._exchanges = UnevenExchanges(tails, mapping)
        known = OPERATIONS - {ALL_TO_ALL_LISTS} if self._exchanges.has_uneven_lists else OPERATIONS
        self._operations = operation_substitutes({view.name for view in calls}, known)
        self._dtypes = dtype_substitutes({name for signature in signatures for name in signature.dtypes})
        self._reduce_ops = reduce_op_substitutes({signature.reduce_op for signature in signatures} - {UNREAD})
        self._sizes = ScriptSizes(1, {})
        unscaled = {
            rank: [self._call(rank, event) for event in tail if _is_call(event)] for rank, tail in tails.items()
        }
        self._sizes = sizes_for(unscaled.values())
        reducing = [signature for signature in signatures if self._operations.get(signature.operation) in _REDUCING]
        self.substitutions = Substitutions(
            operations=_changed(self._operations),
            dtypes=_changed(self._dtypes),
            reduce_ops=_changed(self._reduce_ops),
            sizes=self._sizes,
            without_shapes=any(_lacks_shapes(view) for view in calls),
            without_reduce_ops=any(signature.reduce_op in ("", UNREAD) for signature in reducing),
            without_roots=any(self._lacks_root(view) for view in calls),
            without_splits=self._exchanges.are_unknown,
        )

    def steps(self, rank: int, tail: Sequence[Event], waits: bool) -> tuple[list[Step], bool]:
        """Return the steps for the last calls of a rank, and whether the rank hangs in the last step.

        Args:
            rank: The job's rank.
            tail: The calls.
            waits: Whether the rank waits for a call in flight at the end, even if no wait is recorded: waits in
                devices and in torch's C++ code leave no record.
        """
        steps: list[Step] = []
        works: dict[int, int] = {}
        waited_later = {id(event.operation) for event in tail if event.is_wait}
        for event in tail:
            key = id(event.operation)
            if event.is_wait:
                steps.append(ScriptWait(works[key], event.hangs))
            elif event.operation.operation_id.channel.kind is RecordKind.RENDEZVOUS:
                steps += self._creation(event)
            else:
                call = self._resized(self._call(rank, event))
                if key in waited_later or event.is_pending:
                    works[key] = len(works) + 1
                    call = replace(call, work=works[key])
                steps.append(call)
        if tail and tail[-1].hangs:
            return steps, True
        still_open = [key for key in works if any(id(event.operation) == key and _is_open(event) for event in tail)]
        if waits and still_open:
            return [*steps, ScriptWait(works[still_open[0]], hangs=True)], True
        return steps, False

    def _creation(self, event: Event) -> Iterable[Step]:
        group = event.operation.group
        assert group is not None
        number = number_of(group)
        extra = number - self._earliest if number is not None and self._earliest is not None else 0
        if 0 < extra < MAX_EXTRA_GROUPS:
            yield CreateExtra(extra)
        yield Create(self._groups[group.key], event.hangs, _site(event.operation))

    def _call(self, rank: int, event: Event) -> ScriptCall:
        """Return a call with the job's sizes. A tensor of equal parts is represented by one part."""
        view = event.operation
        group = view.group
        assert group is not None
        operation = self._operations[view.name]
        shapes, dtypes = self._tensors(view)
        if operation != "all_reduce_coalesced":
            shapes, dtypes = shapes[:1], dtypes[:1]
        parts = self._exchanges.parts(rank, view) if operation in PARTED else None
        if parts is not None:
            shapes = (*parts.sent, *parts.received)
            dtypes *= len(shapes)
        elif operation in PARTED and view.name != ALL_TO_ALL_LISTS:
            shapes = tuple(_part(shape, len(group.members)) for shape in shapes)
        signature = view.signature
        reduce_op = signature.reduce_op if signature is not None else ""
        return ScriptCall(
            operation=operation,
            group=self._groups[group.key],
            shapes=() if operation in BARRIERS else shapes,
            dtypes=() if operation in BARRIERS else dtypes,
            reduce_op=self._reduce_ops.get(reduce_op, "") if operation in _REDUCING else "",
            peer=self._peer(view),
            tag=max(view.record.tag, 0),
            is_uneven=parts is not None,
            hangs=event.hangs,
            site=_site(view),
        )

    def _tensors(self, view: OperationView) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
        signature = view.signature
        if signature is None or not signature.shapes:
            return (UNKNOWN_SHAPE,), ("float32",)
        shapes = tuple(tuple(max(int(size), 0) for size in shape) for shape in signature.shapes)
        more = min(signature.tensors, MAX_TENSORS) - len(shapes)
        shapes += (shapes[-1],) * more
        names = [self._dtypes[name] for name in signature.dtypes] or ["float32"]
        dtypes = tuple(names[min(place, len(names) - 1)] for place in range(len(shapes)))
        return shapes, dtypes

    def _resized(self, call: ScriptCall) -> ScriptCall:
        shapes = tuple(self._sizes.of(shape) for shape in call.shapes)
        if call.is_uneven:
            # All parts of a tensor have rows of one shape, so if one part became flat, all must.
            is_flat = shapes != call.shapes
            return replace(call, shapes=tuple((math.prod(shape),) for shape in shapes) if is_flat else shapes)
        if call.operation in PARTED:
            size = len(call.group.ranks)
            shapes = tuple((size * (shape or (1,))[0], *shape[1:]) for shape in shapes)
        return replace(call, shapes=shapes)

    def _peer(self, view: OperationView) -> int:
        if view.record.peer < 0 and view.name not in ROOTED:
            return -1
        script_rank = self._mapping.script_rank(view.record.peer)
        assert view.group is not None
        return script_rank if script_rank is not None else self._groups[view.group.key].ranks[0]

    def _lacks_root(self, view: OperationView) -> bool:
        return view.name in ROOTED and self._mapping.script_rank(view.record.peer) is None


def _is_call(event: Event) -> bool:
    return not event.is_wait and event.operation.operation_id.channel.kind is RecordKind.OPERATION


def _is_open(event: Event) -> bool:
    return not event.is_wait and event.operation.record.is_open


def _changed(replaced: Mapping[str, str]) -> Mapping[str, str]:
    return {name: substitute for name, substitute in replaced.items() if name != substitute}


def _lacks_shapes(view: OperationView) -> bool:
    if view.name in BARRIERS:
        return False
    return view.signature is None or (bool(view.signature.tensors) and not view.signature.shapes)


def _part(shape: tuple[int, ...], members: int) -> tuple[int, ...]:
    """Return one member's part, rounded up if the rows cannot be shared evenly."""
    first, *rest = shape or (1,)
    return (-(-first // members), *rest)


def _site(view: OperationView) -> str:
    return describe_frame(view.call_site) if view.call_site is not None else ""
