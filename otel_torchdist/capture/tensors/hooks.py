"""Hooks: the user's functions that are called before and after operations, with their tensors.

    from otel_torchdist import Hooks, OperationCall

    def check(call: OperationCall) -> None:
        if call.inputs[0].abs().max() > 1e4:
            breakpoint()

    hooks = Hooks(before_operation=check, operations=("all_reduce",), ranks=(3,))

`OTEL_PYTHON_TORCHDIST_HOOKS=my_module:hooks` uses them without changes to the training script.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from otel_torchdist.model.names import CallSiteName, GroupName

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationCall:
    """A call of a collective, a send or a receive: the argument of a hook.

    Attributes:
        operation: Name of the operation, such as `all_reduce` or `send`, as in the span.
        group: The process group: name, description and global ranks of its members.
        sequence: Sequence number among the group's collectives, or among messages with the same source, destination
            and tag. Counted from 1, as in the span.
        rank: The global rank of this process.
        step: Number of the training step.
        peer: Global rank of the root, or of the peer of a send or receive; -1 if there is none.
        reduce_op: Reduce op, such as `sum` or `avg`; '' if there is none. Always '' in torch 2.8, which hides it.
        call_site: The innermost frame of user code; None if there is none, as on autograd's threads.
        inputs: Before the operation: the tensors that it sends, not copies. Otherwise empty.
        outputs: After the operation: the tensors that it has written, unless the program has dropped them. Otherwise
            empty.
    """

    operation: str
    group: GroupName
    sequence: int
    rank: int
    step: int
    peer: int
    reduce_op: str
    call_site: CallSiteName | None
    inputs: tuple[torch.Tensor, ...] = ()
    outputs: tuple[torch.Tensor, ...] = ()


Hook: TypeAlias = Callable[[OperationCall], object]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Hooks, with filters for operations. An empty filter matches everything.

    A hook is called in the rank, on the thread of the operation. Its exceptions go to the program. Operations that a
    hook issues are recorded, without calling hooks.

    Attributes:
        before_operation: Called before the operation is issued. Changes to the inputs are sent.
        after_operation: Called when the operation has ended and its outputs can be read: when a wait for it returns,
            or before the next optimizer step if C++ code waits, as in DDP. Not called for an operation that fails or
            is never waited for.
        operations: Names of operations.
        groups: Patterns (`*`, `?`) for the group's description or name.
        ranks: Global ranks.
    """

    before_operation: Hook | None = None
    after_operation: Hook | None = None
    operations: Collection[str] = field(default=())
    groups: Collection[str] = field(default=())
    ranks: Collection[int] = field(default=())

    def wants_operation(self, operation: str) -> bool:
        """Return whether the filter matches an operation."""
        return not self.operations or operation in self.operations

    def wants(self, group: GroupName, rank: int) -> bool:
        """Return whether the filter matches a group and a rank."""
        if self.ranks and rank not in self.ranks:
            return False
        texts = (group.description, group.name)
        return not self.groups or any(fnmatchcase(text, pattern) for pattern in self.groups for text in texts)
