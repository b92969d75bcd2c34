"""An operation on its way, as the hot path hands it on. One is made for every collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.groups import GroupState
    from otel_torchdist.capture.c10d.plans import Plan
    from otel_torchdist.capture.c10d.schemas import OperationSchema
    from otel_torchdist.capture.cuda.queues import Enqueued


class Call:
    """An operation on its way.

    What most operations never have lies in a dictionary that only the others get; its defaults are below.

    Attributes:
        number: Its record.
        entered_ns: When it was entered.
        plan: What is the same for all calls of its kind.
        tape: Where it is recorded.
        is_plain: Whether nothing is to be noted of it between its call and its end; see `Plan.is_plain`.
        work: Its Work, held only until the end is known, and never for a device's operation.
        work_id: `id` of a Work that is let go of before the end is known.
        own_ns: When our part before the call was over, on calls whose overhead is measured.
        members: Operations that end with this one (coalesced).
        reference: Weak reference to a Work that must not be held.
        pointers: Where it writes to.
        gave_up: Whether a wait for it has given up and left it open.
        enqueued: What is known of it on its device, None when it cannot be followed there.
    """

    __slots__ = ("__dict__", "entered_ns", "is_plain", "number", "plan", "tape", "work")

    work_id: int = 0
    own_ns: int = 0
    members: list[Call] | None = None
    reference: Any = None
    pointers: tuple[int, ...] = ()
    gave_up: bool = False
    enqueued: Enqueued | None = None

    def __init__(self, number: int, entered_ns: int, plan: Plan) -> None:
        """An operation that has just been entered."""
        self.number = number
        self.entered_ns = entered_ns
        self.plan = plan
        self.tape = plan.tape
        self.is_plain = plan.is_plain
        self.work: Any = None

    @property
    def group(self) -> GroupState:
        """Its process group."""
        return self.plan.group

    @property
    def operation(self) -> OperationSchema:
        """What was called."""
        return self.plan.operation

    @property
    def flags(self) -> int:
        """Its record's flags."""
        return self.plan.flags

    @property
    def on_cpu(self) -> bool:
        """Whether the host can know its end."""
        return self.plan.on_cpu
