"""Records every operation before and after the backend call. Training steps pay for each line here.

The caller's exceptions propagate unchanged. Our own exceptions are contained, and the operation is not recorded.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.c10d.completion import SWEPT_PER_CALL, Works
from otel_torchdist.capture.core.calls.buckets import with_label
from otel_torchdist.capture.core.calls.call import ALWAYS, OpenCall
from otel_torchdist.capture.core.calls.plans import REDUCE_OP_EVERY, make_plan, read_arguments
from otel_torchdist.capture.core.calls.signatures import key_of
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import LIST, backward_id, comm_label
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.recording_level import RecordingLevel
from otel_torchdist.tape.layout import Word

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.devices import Devices
    from otel_torchdist.capture.core.call_sites import CallSites
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.calls.schemas import OperationSchema
    from otel_torchdist.capture.core.groups.groups import Groups
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.thread_labels import ThreadLabels

OVERHEAD_SAMPLE: Final = 16
"""Interval, in calls, at which the overhead of our code is measured."""
MAX_COALESCED: Final = 8192
"""Maximum number of operations in one coalescing block."""
MAX_TAG: Final = 0x7FFFFFFF

# Plain integers: arithmetic with enum members is several times slower.
_BACKGROUND: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED | Flag.ON_DEVICE)
"""Operations that run on after the call returns. A synchronous call is waited for immediately."""
_RETURNED: Final = int(Word.RETURNED)
_BY_CALL: Final = int(How.CALL)

_now: Final = time.monotonic_ns
_getpid: Final = os.getpid
_unbox_group: Final = ProcessGroup.unbox


class _Thread(threading.local):
    """State of the calling thread.

    Attributes:
        native_id: The kernel's id. Cached, because reading it takes a system call.
        entered: The last operation that the thread entered; None if its last call was not recorded.
    """

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.entered: OpenCall | None = None


class CollectiveSteps(Protocol):
    """Counter of the default group's collectives. Without another source, a window of collectives is a step."""

    @property
    def source(self) -> int:
        """The source of steps; 0 for windows of collectives."""
        ...

    def collective_begins(self, sequence: int) -> None:
        """Count the default group's next collective."""
        ...


class HotPath(SessionPart):
    """Recorder of operations as they are entered and left."""

    def __init__(
        self,
        groups: Groups,
        steps: CollectiveSteps,
        works: Works,
        devices: Devices,
        find_group: Callable[[ProcessGroup], GroupState | None],
        labels: ThreadLabels,
        forked: Callable[[], None],
    ) -> None:
        """Initialize the hot path.

        Args:
            groups: Known groups.
            steps: Counts the default group's collectives.
            works: Follows operations on the CPU.
            devices: Follows operations on devices.
            find_group: Returns the state of a group, or None if nothing can be recorded. Registers new groups.
            labels: Current label of each thread.
            forked: Called in a child that was forked without Python's hooks.
        """
        self._state_of = groups.by_identity.get
        self._steps = steps
        self.works = works
        self.devices = devices
        self._find_group = find_group
        self._labelled = labels.thread
        self._forked = forked
        self._call_sites: CallSites | None = None
        self.forget_in_child()

    def forget_in_child(self) -> None:
        """Drop each thread's last operation, which references the tape, and its id, which differs in a forked child."""
        self._thread = _Thread()
        self._pid = _getpid()

    def begins(self, recorder: Recorder) -> None:
        """Start recording to a new tape."""
        self._call_sites = recorder.call_sites

    def reduce(self, level: RecordingLevel) -> None:
        """Find no call sites from `NO_CALL_SITES` on."""
        if self._call_sites is not None:
            self._call_sites.is_reduced = level >= RecordingLevel.NO_CALL_SITES

    def ends(self, recorder: Recorder) -> None:
        """Drop each thread's last operation, which references the tape."""
        self._call_sites = None
        self.forget_in_child()

    def leave_groups(self) -> None:
        """Drop each thread's last operation, which references its group."""
        self.forget_in_child()

    def enter(self, operation: OperationSchema, args: tuple[Any, ...], keys: int) -> OpenCall | None:
        """Record an operation before the backend receives it. Return None if it is not recorded.

        Args:
            operation: The called operation.
            args: Its arguments.
            keys: The dispatch keys of the call, as a number. They distinguish devices, layouts and meta tensors.
        """
        entered = _now()
        # The exception handler below undoes what these record.
        group = plan = call = None
        counted = number = 0
        thread = self._thread
        try:  # a signal handler may raise after any call in here
            process_group = _unbox_group(args[operation.group])
            group = self._state_of(id(process_group)) or self._find_group(process_group)
            if group is None:
                thread.entered = None
                return None
            tensors = args[operation.described]
            if type(tensors) is LIST and len(tensors) == 1:
                tensors = tensors[0]
            if type(tensors) is LIST:
                shape, dtype = key_of(tensors), None
            else:
                shape, dtype = tensors.shape, tensors.dtype
            works = self.works
            if works.open:
                works.sweep(SWEPT_PER_CALL)
            async_op = operation.async_op
            peer = group.global_rank(args[operation.peer]) if operation.peer >= 0 else -1
            tag = args[operation.tag] & MAX_TAG if operation.tag >= 0 else 0
            recorder = group.recorder
            key = (
                operation.index,
                shape,
                dtype,
                keys,
                # The dispatcher drops trailing arguments that equal their default, here True.
                async_op >= 0 and (len(args) <= async_op or args[async_op]),
                peer,
                tag,
                group.coalescing is not None,
                comm_label(),
                backward_id() >= 0,
                thread.native_id,
                recorder.call_sites.find(2),
            )
            plan = group.plans.get(key) or make_plan(group, key, operation, args)
            if plan is None:
                thread.entered = None
                return None
            tail = plan.tail
            counter = plan.counter
            sequence = counter[0] + 1
            reading = plan.reading
            if reading and (reading == ALWAYS or not sequence % REDUCE_OP_EVERY):
                plan, tail = read_arguments(key, plan, operation, args, entered)
            label = self._labelled.word[0]
            if label:
                tail = with_label(tail, label)
            elif plan.buckets is not None:
                tail = plan.buckets.put_label(tail)
            if group.is_default and not self._steps.source and not operation.point_to_point:
                self._steps.collective_begins(sequence if plan.channel is group else group.issued + 1)
            counter[0] = counted = sequence
            number = plan.tape.begin_prepared(entered, recorder.step, sequence, tail)
            call = thread.entered = OpenCall(number, entered, plan)
            if not plan.on_cpu:
                self.devices.before(call, tensors, peer)
            if not number % OVERHEAD_SAMPLE:
                if _getpid() != self._pid:  # forked from C: Python's hooks have not run
                    return self._leave_to_parent(call)
                call.is_plain = False
                call.overhead_ns = _now() - max(entered, plan.planned_ns)
            return call
        except BaseException as error:
            thread.entered = None
            if plan is not None and not number:
                number = plan.tape.find_record_entered_at(entered)
            if number and plan is not None:
                plan.tape.complete(number, entered, _now(), How.ABANDONED)
            if call is not None and not call.on_cpu:
                self.devices.failed(call)
            if guard.contains("operation entered", error):
                if not counted and plan is not None:
                    plan.counter[0] += 1  # the operation is issued, but not recorded
                return None
            if counted and plan is not None:
                plan.counter[0] -= 1
            raise

    def _leave_to_parent(self, call: OpenCall) -> None:
        """Stop writing to the parent's tape. It holds fewer than `OVERHEAD_SAMPLE` earlier calls of this child."""
        call.tape.complete(call.number, call.entered_ns, _now(), How.ABANDONED)
        call.plan.counter[0] -= 1
        self._forked()

    def not_received(self, error: BaseException) -> None:
        """Undo `enter` if a signal handler raised `error` before its caller received the result."""
        call = self._thread.entered
        inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if call is None or (inner is not None and inner.tb_frame.f_code is _ENTER):
            return
        self._thread.entered = None
        call.plan.counter[0] -= 1
        if not call.on_cpu:
            self.devices.failed(call)
        self.works.ended(call, How.ABANDONED)

    def leave(self, call: OpenCall, result: Any, args: tuple[Any, ...]) -> None:
        """Record that the backend has accepted an operation."""
        returned = _now()
        try:
            plan = call.plan
            if plan.flags & _BACKGROUND:
                call.tape.mark(call.number, _RETURNED, returned - call.entered_ns, _BY_CALL)
            coalescing = plan.group.coalescing
            if coalescing is not None:
                if len(coalescing) >= MAX_COALESCED:
                    self.abandon_coalesced(plan.group)
                coalescing.append(call)
            elif plan.on_cpu:
                self.works.follow(call, result, args)
            else:
                self.devices.follow(call, result, args)
            if call.overhead_ns:
                overhead_ns = call.overhead_ns + _now() - returned
                call.tape.add_overhead(overhead_ns * OVERHEAD_SAMPLE, OVERHEAD_SAMPLE)
        except Exception as error:
            self.works.ended(call, How.ABANDONED)
            if not guard.contains("operation returned", error):
                raise

    def failed(self, call: OpenCall, error: BaseException) -> None:
        """Record that an operation raised inside torch. It was not issued, so its sequence number is reused."""
        try:
            if guard.came_after_call(error):
                self.interrupted(call)
                return
            operation = call.operation
            if operation.point_to_point or operation.work >= 0:
                # An operation that returns no Work runs to its end in the call: it raises after it was issued.
                call.plan.counter[0] -= 1
            if not call.on_cpu:
                self.devices.failed(call)
            self.works.ended(call, How.FAILED, error)
        except Exception as our_error:
            self.works.ended(call, How.FAILED)
            if not guard.contains("operation failed", our_error):
                raise

    def interrupted(self, call: OpenCall) -> None:
        """End the record of an operation that was issued before a signal handler raised. Nobody has its Work."""
        call.tape.mark(call.number, _RETURNED, _now() - call.entered_ns, _BY_CALL)
        if not call.on_cpu:
            self.devices.failed(call)
        self.works.ended(call, How.ABANDONED)

    def abandon_coalesced(self, group: GroupState) -> None:
        """End the records of a coalescing block that was left with an exception: `_end_coalescing` is never called."""
        members = group.coalescing
        while members:
            self.interrupted(members.pop())


_ENTER: Final = HotPath.enter.__code__
