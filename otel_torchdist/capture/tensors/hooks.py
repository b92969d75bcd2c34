"""Functions of the user's that are called before and after operations, with their tensors.

    from otel_torchdist import Hooks, OperationCall

    def check(call: OperationCall) -> None:
        if call.inputs[0].abs().max() > 1e4:
            breakpoint()

    hooks = Hooks(before_operation=check, operations=("all_reduce",), ranks=(3,))

`OTEL_PYTHON_TORCHDIST_HOOKS=my_module:hooks` uses them without a change of the training script.
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
    """A call of a collective, a send or a receive, as a hook sees it.

    Attributes:
        operation: `all_reduce`, `send`, and so on, as in the span.
        group: The process group: its name, its description and the global ranks of its members.
        sequence: Position among the group's collectives; of a send or receive, among those with the same source,
            destination and tag. Counted from 1, as in the span.
        rank: The global rank of this process.
        step: Number of the training step.
        peer: Global rank of the root, or of the other side of a send or receive; -1 if there is none.
        reduce_op: `sum`, `avg`, and so on; '' if there is none, or this torch (2.8) does not show it.
        call_site: The innermost frame of the user's code; None if there is none, as on autograd's threads.
        inputs: Before the operation: the tensors whose values it sends, themselves and not copies. Otherwise empty.
        outputs: After the operation: the tensors that it has written to, as far as the program still has them.
            Otherwise empty.
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
    """What is called, and for which operations; an empty filter lets all of them pass.

    A hook is called in the rank, on the thread that makes the call, and what it raises goes to the program. Operations
    that it issues itself are recorded, and no hook is called for them.

    Attributes:
        before_operation: Called before the operation is issued. What it changes in the inputs is sent.
        after_operation: Called when the operation has ended and its outputs can be read: where a wait for it returns,
            or before the next step of an optimizer if C++ waits, as DDP does. Not called for an operation that is
            never waited for, or that fails.
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
        """Return whether the filter lets an operation pass."""
        return not self.operations or operation in self.operations

    def wants(self, group: GroupName, rank: int) -> bool:
        """Return whether the filter lets a group and a rank pass."""
        if self.ranks and rank not in self.ranks:
            return False
        texts = (group.description, group.name)
        return not self.groups or any(fnmatchcase(text, pattern) for pattern in self.groups for text in texts)
