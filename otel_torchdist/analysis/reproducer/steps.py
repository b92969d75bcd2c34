"""From what a rank of the job has called to what a rank of the script calls, and in which groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.analysis.reproducer.calls import OPERATIONS
from otel_torchdist.analysis.reproducer.cast import Cast
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
    LISTS,
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

MOST_DIGITS: Final = 9


def groups_for(views: Iterable[GroupView], cast: Cast, world_size: int) -> Mapping[str, ScriptGroup]:
    """By key of the job's group, that of the script, in the order in which they are created.

    Args:
        views: The groups that matter.
        cast: Which ranks have a rank in the script.
        world_size: Ranks of the job; 0 if that is not known.
    """
    found: dict[str, ScriptGroup] = {}
    for view in sorted({view.key: view for view in views}.values(), key=_created):
        members = tuple(place for place, rank in enumerate(cast.kept) if rank in view.members)
        number = (
            DEFAULT_GROUP if _is_default(view.name, world_size) else 1 + sum(one.number > 0 for one in found.values())
        )
        found[view.key] = ScriptGroup(number, members, view.label)
    return found


def whole(cast: Cast) -> ScriptGroup:
    """The default group."""
    return ScriptGroup(DEFAULT_GROUP, tuple(range(len(cast.kept))))


def number_of(view: GroupView) -> int | None:
    """The number that torch has named a group by, in the order of their creation; None where names are hashes."""
    name = view.name.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) < MOST_DIGITS else None


def _created(view: GroupView) -> tuple[int, int, str, str]:
    number = number_of(view)
    return 10**MOST_DIGITS if number is None else number, view.name.nth, view.label, view.key


def _is_default(name: GroupName, world_size: int) -> bool:
    """Whether it is the default group: no other with all ranks was created before it."""
    if name.description == DEFAULT_DESCRIPTION:
        return True
    return name.nth == 0 and world_size > 0 and len(name.ranks) == world_size and not name.description


MOST_TENSORS: Final = 4_096
MOST_EXTRA: Final = 4_096
UNKNOWN_SHAPE: Final = (4,)
_REDUCING: Final = operations_where(lambda row: row.family.reduces)


@dataclass(frozen=True, slots=True)
class Substituted:
    """What is different in the script because gloo or this machine could not do it, or because it is not recorded.

    Attributes:
        operations: By operation of the job, that of the script.
        dtypes: By type of the job, that of the script.
        reduce_ops: By reduce op of the job, that of the script.
        sizes: How tensors were made smaller.
        without_shapes: Whether shapes of calls are not recorded.
        without_reduce_ops: Whether reduce ops of calls are not recorded.
        without_roots: Whether roots of calls are not recorded, or have no rank in the script.
        without_splits: Whether it is not recorded how uneven exchanges are split.
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
        substituted: What is different from the job.
    """

    def __init__(
        self, tails: Mapping[int, Sequence[Event]], cast: Cast, groups: Mapping[str, ScriptGroup], earliest: int | None
    ) -> None:
        """Decide what stands for what, which depends on all calls.

        Args:
            tails: By rank of the job that has a rank in the script, its last calls.
            cast: The ranks.
            groups: The groups by their keys in the job.
            earliest: The lowest of the numbers that torch has given to a group that is created in the tails; None if
                it has given none.
        """
        self._cast, self._groups, self._earliest = cast, groups, earliest
        views = [event.operation for tail in tails.values() for event in tail]
        calls = [view for view in views if view.operation_id.channel.kind is RecordKind.OPERATION]
        signatures = [view.signature for view in calls if view.signature is not None]
        self._exchanges = UnevenExchanges(tails, cast)
        known = OPERATIONS - {LISTS} if self._exchanges.has_uneven_lists else OPERATIONS
        self._operations = operation_substitutes({view.name for view in calls}, known)
        self._dtypes = dtype_substitutes({name for one in signatures for name in one.dtypes})
        self._reduce_ops = reduce_op_substitutes({one.reduce_op for one in signatures} - {UNREAD})
        self._sizes = ScriptSizes(1, {})
        plain = {rank: [self._call(rank, event) for event in tail if _is_call(event)] for rank, tail in tails.items()}
        self._sizes = sizes_for(plain.values())
        reducing = [one for one in signatures if self._operations.get(one.operation) in _REDUCING]
        self.substituted = Substituted(
            operations=_changed(self._operations),
            dtypes=_changed(self._dtypes),
            reduce_ops=_changed(self._reduce_ops),
            sizes=self._sizes,
            without_shapes=any(_lacks_shapes(view) for view in calls),
            without_reduce_ops=any(one.reduce_op in ("", UNREAD) for one in reducing),
            without_roots=any(self._lacks_root(view) for view in calls),
            without_splits=self._exchanges.are_unknown,
        )

    def steps(self, rank: int, tail: Sequence[Event], waits: bool) -> tuple[list[Step], bool]:
        """The steps for the last calls of a rank, and whether it hangs in the last one.

        Args:
            rank: The rank, as in the job.
            tail: The calls.
            waits: Whether the rank waits in the end for a call that is still open. A device waits without a record of
                it, and so does torch's C++ code.
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
        still_open = [key for key in works if any(id(one.operation) == key and _is_open(one) for one in tail)]
        if waits and still_open:
            return [*steps, ScriptWait(works[still_open[0]], hangs=True)], True
        return steps, False

    def _creation(self, event: Event) -> Iterable[Step]:
        group = event.operation.group
        assert group is not None
        number = number_of(group)
        extra = number - self._earliest if number is not None and self._earliest is not None else 0
        if 0 < extra < MOST_EXTRA:
            yield CreateExtra(extra)
        yield Create(self._groups[group.key], event.hangs, _site(event.operation))

    def _call(self, rank: int, event: Event) -> ScriptCall:
        """A call with the sizes of the job; of what has a part for each member, one part if they are alike."""
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
        elif operation in PARTED and view.name != LISTS:
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
        more = min(signature.tensors, MOST_TENSORS) - len(shapes)
        shapes += (shapes[-1],) * more
        names = [self._dtypes[name] for name in signature.dtypes] or ["float32"]
        dtypes = tuple(names[min(place, len(names) - 1)] for place in range(len(shapes)))
        return shapes, dtypes

    def _resized(self, call: ScriptCall) -> ScriptCall:
        shapes = tuple(self._sizes.of(shape) for shape in call.shapes)
        if call.is_uneven:
            # Parts of a tensor have rows of one kind: if one became flat, all do.
            is_flat = shapes != call.shapes
            return replace(call, shapes=tuple((math.prod(shape),) for shape in shapes) if is_flat else shapes)
        if call.operation in PARTED:
            size = len(call.group.ranks)
            shapes = tuple((size * (shape or (1,))[0], *shape[1:]) for shape in shapes)
        return replace(call, shapes=shapes)

    def _peer(self, view: OperationView) -> int:
        if view.record.peer < 0 and view.name not in ROOTED:
            return -1
        found = self._cast.script_rank(view.record.peer)
        assert view.group is not None
        return found if found is not None else self._groups[view.group.key].ranks[0]

    def _lacks_root(self, view: OperationView) -> bool:
        return view.name in ROOTED and self._cast.script_rank(view.record.peer) is None


def _is_call(event: Event) -> bool:
    return not event.is_wait and event.operation.operation_id.channel.kind is RecordKind.OPERATION


def _is_open(event: Event) -> bool:
    return not event.is_wait and event.operation.record.is_open


def _changed(replaced: Mapping[str, str]) -> Mapping[str, str]:
    return {name: other for name, other in replaced.items() if name != other}


def _lacks_shapes(view: OperationView) -> bool:
    if view.name in BARRIERS:
        return False
    return view.signature is None or (bool(view.signature.tensors) and not view.signature.shapes)


def _part(shape: tuple[int, ...], members: int) -> tuple[int, ...]:
    """One member's part; as large as the largest where the rows cannot be shared evenly."""
    first, *rest = shape or (1,)
    return (-(-first // members), *rest)


def _site(view: OperationView) -> str:
    return describe_frame(view.call_site) if view.call_site is not None else ""
