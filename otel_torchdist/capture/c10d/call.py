"""An operation on its way, how it is recorded, and the process group that it belongs to. They refer to each other.

Where a group's operations are counted is a channel. Ranks compare how far they have come by these numbers, so they have
to be counted as the backend orders them. A group with a backend for each device type (`cpu:gloo,cuda:nccl`) has two
orders that know nothing of each other: while one thread trains on CUDA, another gathers a checkpoint's plan on the
CPU, at another moment on each rank.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from torch.distributed import ProcessGroup

from otel_torchdist.capture.c10d.backends import Backends, has_several_backends
from otel_torchdist.capture.c10d.signatures import Signatures
from otel_torchdist.tape.layout import Flag
from otel_torchdist.tape.names import SPARE_OF_GROUPS
from otel_torchdist.tape.records import GroupName

if TYPE_CHECKING:
    from types import CodeType

    from otel_torchdist.capture.c10d.schemas import OperationSchema
    from otel_torchdist.capture.recorder import Recorder

SOMETIMES: Final = 1
ALWAYS: Final = 2

_LEFT_ALONE: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED)

PlanKey: TypeAlias = tuple[Any, ...]


class Channel:
    """The operations of one group that one backend carries out.

    Attributes:
        name_id: The group's id in the dictionary.
        rank: This rank's global number.
        sequence: Collectives issued so far.
        point_to_point: Operations so far by (source, destination, tag).
    """

    __slots__ = ("name_id", "point_to_point", "rank", "sequence")

    def __init__(self, name_id: int, rank: int) -> None:
        """Nothing has been issued."""
        self.name_id = name_id
        self.rank = rank
        self.sequence = 0
        self.point_to_point: Counter[tuple[int, int, int]] = Counter()

    def count_point_to_point(self, is_send: bool, peer: int, tag: int) -> int:
        """Count one operation among those with the same source, destination and tag; returns its place, from 1."""
        key = (self.rank, peer, tag) if is_send else (peer, self.rank, tag)
        self.point_to_point[key] += 1
        return self.point_to_point[key]

    def uncount_point_to_point(self, is_send: bool, peer: int, tag: int) -> None:
        """Take one count back: the operation was refused."""
        self.point_to_point[(self.rank, peer, tag) if is_send else (peer, self.rank, tag)] -= 1


class GroupState(Channel):
    """A process group of this rank; all of its operations are one channel, unless it has several backends.

    Attributes:
        recorder: Whose tape its operations go to.
        name: As it stands in the dictionary.
        backend_on: What the backend for a device type calls itself; '' when the group has none.
        coalescing: Operations issued since `_start_coalescing`; None outside.
        has_been_asked: Whether it is known if its Works know when they are complete.
        synchronized: Whether a collective has ended that proves that every member was there.
        is_default: Whether it is the default group.
        is_over: Whether nothing of it is recorded any more.
        plans: How its calls are recorded, by kind and place.
    """

    __slots__ = (
        "__weakref__",
        "_channels",
        "backend_on",
        "coalescing",
        "group_rank",
        "has_been_asked",
        "is_default",
        "is_over",
        "name",
        "plans",
        "recorder",
        "reference",
        "signatures",
        "synchronized",
    )

    def __init__(self, recorder: Recorder, group: ProcessGroup, name: GroupName, group_rank: int) -> None:
        """Learn a group that was not known before, in which this rank is number `group_rank`."""
        rank = name.ranks[group_rank] if 0 <= group_rank < len(name.ranks) else group_rank
        super().__init__(recorder.tape.names.intern(name, SPARE_OF_GROUPS), rank)
        self.group_rank = group_rank
        self.recorder = recorder
        self.name = name
        self._channels: dict[str, Channel] | None = {} if has_several_backends(group) else None
        self.coalescing: list[Call] | None = None
        self.synchronized = False
        self.has_been_asked = False
        self.is_default = False
        self.reference = weakref.ref(group)
        self.backend_on = Backends(self.reference)
        self.signatures = Signatures(recorder.tape.names, self.backend_on, len(name.ranks))
        self.plans: dict[PlanKey, Plan] = {}
        self.is_over = False

    @property
    def issued(self) -> int:
        """Collectives issued so far, on all of its channels."""
        return self.sequence + sum(channel.sequence for channel in tuple((self._channels or {}).values()))

    def end_by_wait(self) -> None:
        """Its backend's Works cannot be asked whether they are complete: from now on only a wait shows an end."""
        if not self.signatures.only_wait_ends:
            self.signatures.only_wait_ends = True
            self.plans.clear()

    def give_up(self) -> None:
        """It is over: nothing may keep the tape and its memory. Many trainings run without Python's collector."""
        self.is_over = True
        self.plans.clear()  # they refer to this

    def global_rank(self, group_rank: int) -> int:
        """Global rank of a member; -1 when there is no such member."""
        ranks = self.name.ranks
        return ranks[group_rank] if 0 <= group_rank < len(ranks) else -1

    def channel_of(self, device: str) -> Channel:
        """Where operations on a type of device are counted."""
        if self._channels is None:
            return self
        channel = self._channels.get(device)
        if channel is None:
            name = dataclasses.replace(self.name, backend=self.backend_on(device), device=device)
            channel = self._channels[device] = Channel(
                self.recorder.tape.names.intern(name, SPARE_OF_GROUPS), self.rank
            )
        return channel

    def has_met(self, rank: int) -> bool:
        """Whether a collective of this group has ended that proves that `rank` had entered it."""
        return self.synchronized and rank in self.name.ranks


class Plan:
    """How calls of one kind from one place are recorded.

    Attributes:
        group: Their process group.
        channel: Where they are counted.
        operation: What is called.
        tape: Where they are recorded.
        tail: The constant part of their records; where there is a reduce op, of those whose op was not read.
        tail_read: The same for those whose reduce op was read.
        flags: Their flags.
        on_cpu: Whether the host can know their end.
        is_left_alone: Whether the caller goes on while they run.
        is_plain: Whether they run on the CPU, one at a time, and their callers wait for them at once.
        reduce_op: The reduce op in `tail`; -1 where there is none.
        code: Code of the call site, held because its `id` is in the key.
        reading: When the reduce op is read: `SOMETIMES`, `ALWAYS`, or 0 where there is none.
        reads: How often it has been read.
        varies: Whether it has been seen to change.
    """

    __slots__ = (
        "channel",
        "code",
        "flags",
        "group",
        "is_left_alone",
        "is_plain",
        "on_cpu",
        "operation",
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
        channel: Channel,
        operation: OperationSchema,
        tail: bytes,
        tail_read: bytes,
        flags: int,
        on_cpu: bool,
        reduce_op: int,
        code: CodeType | None,
    ) -> None:
        """A plan that has not been used."""
        self.group = group
        self.channel = channel
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
        self.reading = ALWAYS if reduce_op >= 0 else 0
        self.reads = 0
        self.varies = False


class OnDevice(Protocol):
    """What is known of an operation on its device.

    Attributes:
        is_void: Whether there is nothing to find out any more.
    """

    is_void: bool

    def coalesce(self, members: list[Call]) -> None:
        """Operations that were issued after this one have been issued as one with it."""
        ...


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
    enqueued: OnDevice | None = None

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
