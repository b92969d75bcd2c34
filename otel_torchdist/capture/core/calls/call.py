"""Operations in flight, how they are recorded, and their process groups. The classes refer to each other."""

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
    from otel_torchdist.model.names import GroupName

SOMETIMES: Final = 1
ALWAYS: Final = 2

_LEFT_ALONE: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED)

PlanKey: TypeAlias = tuple[Any, ...]


class GroupState(GroupChannels):
    """A process group of this rank, and how its calls are recorded.

    Attributes:
        coalescing: Operations issued since `_start_coalescing`; None outside.
        has_been_asked: Whether it is known if its Works can report completion.
        synchronized: Whether such a collective was recorded in Python; see `is_synchronized`.
        native: The group in the native library, if that is in use.
        is_default: Whether it is the default group.
        is_over: Whether its operations are no longer recorded.
        plans: How its calls are recorded, by kind and call site.
        ragged: The same where shapes hardly repeat.
        buckets: The buckets of the model whose gradients it reduces; None if no model is known to.
    """

    __slots__ = (
        "buckets",
        "coalescing",
        "has_been_asked",
        "is_default",
        "is_over",
        "native",
        "plans",
        "ragged",
        "signatures",
        "synchronized",
    )

    def __init__(self, recorder: Recorder, group: ProcessGroup, name: GroupName, group_rank: int) -> None:
        """Initialize the state of a new group, in which this rank has rank `group_rank`."""
        super().__init__(recorder, group, name, group_rank)
        self.coalescing: list[OpenCall] | None = None
        self.synchronized = False
        self.has_been_asked = False
        self.is_default = False
        self.signatures = Signatures(recorder.tape.names, self.backend_on, len(name.ranks))
        self.plans: dict[PlanKey, Plan] = {}
        self.ragged: RaggedLines[Plan] = RaggedLines()
        self.buckets: Buckets | None = None
        self.is_over = False
        recorder.message_counters.add_user(self)
        self.native = recorder.native.add_group(not self.has_several_channels) if recorder.native is not None else None

    def end_by_wait(self) -> None:
        """From now on, take ends from waits only: its backend's Works cannot report whether they are complete."""
        if not self.signatures.only_wait_ends:
            self.signatures.only_wait_ends = True
            self.forget_plans()

    def give_up(self) -> None:
        """Stop recording the group and drop what keeps the tape's memory: many trainings run without Python's GC."""
        self.is_over = True
        self.forget_plans()  # plans refer to this group

    def forget_plans(self) -> None:
        """Plan all calls anew."""
        self.plans.clear()
        self.ragged.forget_plans()
        if self.recorder.native is not None:
            self.recorder.native.void_plans()

    def count_buckets(self, buckets: Buckets) -> None:
        """From now on, count the buckets of gradients that it reduces."""
        self.buckets = buckets
        self.forget_plans()

    def begin_coalescing(self) -> None:
        """Collect what is issued from now on, because it ends together."""
        self.coalescing = []
        if self.native is not None:
            self.native.set_coalescing(True)

    def end_coalescing(self) -> list[OpenCall] | None:
        """Stop collecting; return what was collected, None if `begin_coalescing` was not called."""
        members, self.coalescing = self.coalescing, None
        if self.native is not None:
            self.native.set_coalescing(False)
        return members

    def become_default(self) -> None:
        """From now on this is the default group."""
        self.is_default = True
        if self.native is not None:
            self.native.set_default()

    @property
    def is_synchronized(self) -> bool:
        """Whether a collective has ended that proves that every member was there."""
        return self.synchronized or (self.native is not None and self.native.is_synchronized())

    def renew_timeout(self) -> None:
        """Record later operations with the timeout that they have from now on."""
        if not self.is_over and self.renew_names():
            self.forget_plans()

    def has_met(self, rank: int) -> bool:
        """Whether a collective has ended here that proves that `rank` of the default world had entered it."""
        return self.is_synchronized and not self.name.world and rank in self.name.ranks


class Plan:
    """How calls of one kind from one call site are recorded.

    Attributes:
        group: Their process group.
        channel: The channel that they are issued on.
        counter: Where they are counted: with the channel's collectives, or with messages like them.
        operation: The operation that is called.
        tape: The tape on which they are recorded.
        tail: The constant part of their records; if there is a reduce op, of those whose op was not read.
        tail_read: The constant part of records whose reduce op was read, or of an `all_to_all` that is uneven.
        flags: Their flags.
        on_cpu: Whether the host can observe their end.
        is_left_alone: Whether the caller goes on while they run.
        is_plain: Whether they run on the CPU, one at a time, and their callers wait for them immediately.
        reduce_op: The reduce op in `tail`; -1 if there is none.
        code: Code of the call site, held because its `id` is in the key.
        reading: When arguments are read in which these calls may differ, a reduce op or split sizes: `SOMETIMES`,
            `ALWAYS`, or 0 if there are none.
        reads: How often the reduce op has been read.
        varies: Whether it has been seen to change.
        offered: For which generation of its plans the native library knows this one; 0 for none.
        planned_ns: When it was made; 0 for those that `make_plan` has not made.
        ragged_factor: By what the bytes of the described tensors are multiplied to get the size of the message, where
            calls of all sizes share this plan; None elsewhere.
        buckets: Counts them, if they may reduce buckets of gradients; None for others.
    """

    __slots__ = (
        "buckets",
        "channel",
        "code",
        "counter",
        "flags",
        "group",
        "is_left_alone",
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
        self.is_left_alone = bool(flags & _LEFT_ALONE)
        self.is_plain = on_cpu and not self.is_left_alone
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
        """Use this plan for calls of all sizes: from now on each call's own is read; see `ragged_factor`."""
        self.ragged_factor = factor
        self.reading = ALWAYS


class OnDevice(Protocol):
    """State of an operation on its device.

    Attributes:
        is_void: Whether nothing more will be found out about it.
    """

    is_void: bool

    def coalesce(self, members: list[OpenCall]) -> None:
        """Add operations that were issued after this one and coalesced with it."""
        ...


class OpenCall:
    """An operation in flight.

    Attributes that most operations never need are kept in a dictionary that only the others get; defaults are below.

    Attributes:
        number: Number of its record.
        entered_ns: When it was entered.
        plan: What all calls of its kind share.
        tape: The tape on which it is recorded.
        is_plain: Whether nothing has to be recorded between its call and its end; see `Plan.is_plain`.
        work: Its Work, held only until the end is known, and never for a device operation.
        work_id: `id` of a Work that is released before the end is known.
        own_ns: Time that our code took before the call, on calls whose overhead is measured.
        members: Operations that end with this one (coalesced).
        reference: Weak reference to a Work that must not be held.
        pointers: Addresses of the memory that it writes to.
        gave_up: Whether a wait for it gave up and left it open.
        enqueued: Its state on its device; None if it cannot be followed there.
    """

    __slots__ = ("__dict__", "entered_ns", "is_plain", "number", "plan", "tape", "work")

    work_id: int = 0
    own_ns: int = 0
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
        """Whether the host can observe the operation's end."""
        return self.plan.on_cpu
