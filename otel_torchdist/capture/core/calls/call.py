"""Operations in flight, the plans that they are recorded with, and their process groups."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from otel_torchdist.capture.core.calls.channels import GroupChannel, GroupChannels
from otel_torchdist.capture.core.calls.signatures import RaggedLines, Signatures
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import GroupName

if TYPE_CHECKING:
    from types import CodeType

    from torch.distributed import ProcessGroup

    from otel_torchdist.capture.core.calls.buckets import Buckets
    from otel_torchdist.capture.core.calls.schemas import OperationSchema
    from otel_torchdist.capture.core.recorder import Recorder

SOMETIMES: Final = 1
ALWAYS: Final = 2
"""Values of `Plan.reading`."""

_BACKGROUND: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED)

PlanKey: TypeAlias = tuple[Any, ...]
"""The properties that calls of one plan have in common; built by `HotPath.enter`."""


class GroupState(GroupChannels):
    """A process group of this rank, with the plans of its calls.

    Attributes:
        coalescing: Operations issued since `_start_coalescing`; None outside of a block.
        is_probed: Whether its Works were checked for support of `is_completed()`.
        synchronized: Whether a synchronizing collective recorded in Python has ended; see `is_synchronized`.
        native: The group in the native library, if the library is in use.
        is_over: Whether its operations are no longer recorded.
        plans: Plans by kind of call and call site.
        ragged: Plans of call sites whose shapes hardly repeat.
        buckets: The buckets of the model whose gradients the group reduces; None if no model is known.
    """

    __slots__ = (
        "buckets",
        "coalescing",
        "is_default",
        "is_over",
        "is_probed",
        "native",
        "plans",
        "ragged",
        "signatures",
        "synchronized",
    )

    def __init__(self, recorder: Recorder, group: ProcessGroup, name: GroupName, group_rank: int) -> None:
        """Initialize the state of a new group. `group_rank` is this rank's rank in it."""
        super().__init__(recorder, group, name, group_rank)
        self.coalescing: list[OpenCall] | None = None
        self.synchronized = False
        self.is_probed = False
        self.is_default = False
        self.signatures = Signatures(recorder.tape.names, self.backend_on, len(name.ranks))
        self.plans: dict[PlanKey, Plan] = {}
        self.ragged: RaggedLines[Plan] = RaggedLines()
        self.buckets: Buckets | None = None
        self.is_over = False
        recorder.message_counters.add_plan_owner(self)
        self.native = recorder.native.add_group(not self.has_several_channels) if recorder.native is not None else None

    def end_by_wait(self) -> None:
        """From now on, operations end only when a wait returns: the backend's Works cannot report completion."""
        if not self.signatures.only_wait_ends:
            self.signatures.only_wait_ends = True
            self.forget_plans()

    def give_up(self) -> None:
        """Stop recording the group and drop its references to the tape: many programs disable Python's GC."""
        self.is_over = True
        self.forget_plans()  # plans refer to this group

    def forget_plans(self) -> None:
        """Drop all plans, so that calls are planned anew."""
        self.plans.clear()
        self.ragged.forget_plans()
        if self.recorder.native is not None:
            self.recorder.native.void_plans()

    def count_buckets(self, buckets: Buckets) -> None:
        """From now on, count the gradient buckets that the group reduces."""
        self.buckets = buckets
        self.forget_plans()

    def begin_coalescing(self) -> None:
        """Collect the operations that are issued from now on. They end together."""
        self.coalescing = []
        if self.native is not None:
            self.native.set_coalescing(True)

    def end_coalescing(self) -> list[OpenCall] | None:
        """Stop collecting, and return the operations, or None if `begin_coalescing` was not called."""
        members, self.coalescing = self.coalescing, None
        if self.native is not None:
            self.native.set_coalescing(False)
        return members

    def become_default(self) -> None:
        """Mark the group as the default group."""
        self.is_default = True
        if self.native is not None:
            self.native.set_default()

    @property
    def is_synchronized(self) -> bool:
        """Whether a collective has ended whose end proves that every member entered it."""
        return self.synchronized or (self.native is not None and self.native.is_synchronized())

    def renew_timeout(self) -> None:
        """Record later operations with the group's new timeout."""
        if not self.is_over and self.renew_names():
            self.forget_plans()

    def has_met(self, rank: int) -> bool:
        """Return whether a collective has ended whose end proves that `rank` of the default world entered it."""
        return self.is_synchronized and not self.name.world and rank in self.name.ranks


class Plan:
    """The plan for recording calls of one kind from one call site.

    Attributes:
        channel: The channel that the calls are issued on.
        counter: The counter of the calls: the channel's collectives, or messages with the same peer and tag.
        tail: The constant part of the records. If there is a reduce op: for calls whose op is not read.
        tail_read: `tail` for calls whose reduce op is read, and for an uneven `all_to_all` or `all_gather`.
        on_cpu: Whether the host can observe the ends.
        is_background: Whether the caller continues while the operations run.
        is_plain: Whether the operations run on the CPU, one at a time, and their callers wait for them immediately.
        reduce_op: The reduce op in `tail`; -1 if there is none.
        code: Code of the call site. Referenced, because its `id` is in the key.
        reading: When to read the arguments that vary between calls (reduce op, split sizes): `SOMETIMES`, `ALWAYS`,
            or 0 without such arguments.
        reads: Number of times that the reduce op was read.
        varies: Whether the reduce op has changed.
        offered: The library's generation of plans that includes this plan; 0 if it was not offered.
        planned_ns: Time at which `make_plan` made the plan; 0 otherwise.
        ragged_factor: If calls of all sizes share this plan: the ratio of message size to the bytes of the described
            tensors. Otherwise None.
        buckets: Counts the calls, if they may reduce gradient buckets; None otherwise.
    """

    __slots__ = (
        "buckets",
        "channel",
        "code",
        "counter",
        "flags",
        "group",
        "is_background",
        "is_plain",
        "offered",
        "on_cpu",
        "operation",
        "planned_ns",
        "ragged_factor",
        "reading",
        "reads",
        "reduce_op",
        "tail",
        "tail_read",
        "tape",
        "varies",
    )

    def __init__(
        self,
        group: GroupState,
        channel: GroupChannel,
        counter: MutableSequence[int],
        operation: OperationSchema,
        tail: bytes,
        tail_read: bytes,
        flags: int,
        on_cpu: bool,
        reduce_op: int,
        code: CodeType | None,
    ) -> None:
        self.group = group
        self.channel = channel
        self.counter = counter
        self.operation = operation
        self.tape = group.recorder.tape
        self.tail = tail
        self.tail_read = tail_read
        self.flags = flags
        self.on_cpu = on_cpu
        self.is_background = bool(flags & _BACKGROUND)
        self.is_plain = on_cpu and not self.is_background
        self.reduce_op = reduce_op
        self.code = code
        self.planned_ns = 0
        self.reading = ALWAYS if reduce_op >= 0 or operation.received >= 0 or operation.gathered >= 0 else 0
        self.reads = 0
        self.varies = False
        self.offered = 0
        self.ragged_factor: int | None = None
        self.buckets: Buckets | None = None

    def becomes_ragged(self, factor: int) -> None:
        """Use this plan for calls of all sizes. From now on, each call's size is read."""
        self.ragged_factor = factor
        self.reading = ALWAYS


class OnDevice(Protocol):
    """State of an operation on its device.

    Attributes:
        is_void: Whether the operation is no longer followed.
    """

    is_void: bool

    def coalesce(self, members: list[OpenCall]) -> None:
        """Add the later operations of the coalesced block."""
        ...


class OpenCall:
    """An operation in flight.

    Rarely used attributes are class attributes with their defaults. Only operations that set them have a `__dict__`.

    Attributes:
        number: Number of its record.
        is_plain: Whether nothing is recorded between its call and its end; see `Plan.is_plain`.
        work: Its Work, held until the end is known. Never held for a device operation.
        work_id: `id` of a Work that is released before the end is known.
        overhead_ns: Time that our code took before the call, if the overhead of this call is measured.
        members: The later operations of a coalesced block. They end with this one.
        reference: Weak reference to a Work that must not be held.
        pointers: Addresses of the output's memory.
        gave_up: Whether a wait for it timed out. The operation is still in flight.
        enqueued: Its state on its device; None if it cannot be followed there.
    """

    __slots__ = ("__dict__", "entered_ns", "is_plain", "number", "plan", "tape", "work")

    work_id: int = 0
    overhead_ns: int = 0
    members: list[OpenCall] | None = None
    reference: Any = None
    pointers: tuple[int, ...] = ()
    gave_up: bool = False
    enqueued: OnDevice | None = None

    def __init__(self, number: int, entered_ns: int, plan: Plan) -> None:
        self.number = number
        self.entered_ns = entered_ns
        self.plan = plan
        self.tape = plan.tape
        self.is_plain = plan.is_plain
        self.work: Any = None

    @property
    def group(self) -> GroupState:
        """The operation's process group."""
        return self.plan.group

    @property
    def operation(self) -> OperationSchema:
        """The operation that was called."""
        return self.plan.operation

    @property
    def flags(self) -> int:
        """Flags of the operation's record."""
        return self.plan.flags

    @property
    def on_cpu(self) -> bool:
        """Whether the host can observe the end."""
        return self.plan.on_cpu
