"""Records the creation of a group as an operation that is open until every member has joined."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, Protocol

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.backends import at_timeout_of
from otel_torchdist.capture.core.failures import failure_word
from otel_torchdist.capture.core.groups.worlds import DEFAULT_WORLD, GroupWorld
from otel_torchdist.capture.core.intervals import RecordedInterval
from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.names import SPARE_OF_GROUPS, AtTimeout, GroupName, SignatureName

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from otel_torchdist.capture.core.recorder import Recorder

NOT_COUNTED: Final = -1
"""Value of `Rendezvous.nth` before the group is counted."""


class GroupEvents(Protocol):
    """Receiver of group events."""

    def default_group_begins(self, rank: int, world_size: int) -> Recorder | None:
        """Prepare for a default group that is about to be created. Return its recorder."""
        ...

    def standalone_group_begins(self, world: GroupWorld, world_size: int) -> Recorder | None:
        """Prepare for a standalone process group that is about to be created. Return the recorder of its operations."""
        ...

    def world_of(self, group: ProcessGroup) -> GroupWorld:
        """Return the world of a group."""
        ...

    def current_recorder(self) -> Recorder | None:
        """Return the current recorder, or None."""
        ...

    def group_created(self, group: ProcessGroup, rendezvous: Rendezvous) -> None:
        """Register a new group that includes this rank."""
        ...

    def default_group_set(self, group: ProcessGroup | None) -> None:
        """Handle a change of torch's default group; None if it was destroyed."""
        ...


class Rendezvous:
    """The creation of one group, recorded as an operation that is open until every member has joined.

    A signal handler may raise before, during or after the creation. torch then abandons it, and nothing else would
    complete the record. So this object exists before its record, and the frame that calls torch reports the end.

    Attributes:
        recorder: Recorder of the operation; None while it is not recorded.
        ranks: Global ranks of the members.
        nth: Number of earlier groups with these members; `NOT_COUNTED` before `enter`.
        world: The world of the group.
        thread: Native id of the thread that creates it.
        python_thread: Python's id of that thread.
        address: Address of the rendezvous; '' if unknown.
        is_over: Whether its end is recorded.
        has_joined: Whether the group exists.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.ranks: tuple[int, ...] = ()
        self.nth = NOT_COUNTED
        self.world = DEFAULT_WORLD
        self.thread = threading.get_native_id()
        self.python_thread = threading.get_ident()
        self.is_over = self.has_joined = False
        self._interval: RecordedInterval | None = None
        self.address = ""
        self._name = 0

    def enter(
        self,
        recorder: Recorder,
        function: str,
        ranks: tuple[int, ...],
        name: str,
        description: str,
        backend: str,
        timeout_ms: int,
        world: GroupWorld = DEFAULT_WORLD,
        address: str = "",
    ) -> None:
        """Record the operation as entered.

        Args:
            recorder: Recorder of the operation.
            function: Public name of the function that creates the group.
            ranks: Global ranks of the members.
            name: The group's name in torch.
            description: The group's description in torch.
            backend: The requested backend.
            timeout_ms: The timeout of its operations in milliseconds; 0 if unknown.
            world: The world of the group.
            address: Address of the rendezvous; '' if unknown.
        """
        self.recorder = recorder
        self.ranks = ranks
        self.world = world
        # Set before the group is counted, which may be interrupted.
        self.nth = recorder.groups_before(ranks, world.name)
        recorder.count_group(ranks, world.name)
        self.address = address
        tape = recorder.tape
        self._name = tape.names.intern(self._group(name, description, backend, timeout_ms), SPARE_OF_GROUPS)
        signature = SignatureName(function, reduce_op="", shapes=(), dtypes=(), device="", tensors=0)
        tail = tape.prepare(
            message_bytes=0,
            group=self._name,
            signature=tape.names.intern(signature),
            call_site=_call_site(recorder),
            label=0,
            peer=-1,
            tag=0,
            thread=self.thread,
            kind=RecordKind.RENDEZVOUS,
            flags=0,
        )
        self._interval = interval = RecordedInterval(tape, time.monotonic_ns())
        interval.begin(recorder.step, self.nth + 1, tail)

    def _group(self, name: str, description: str, backend: str, timeout_ms: int) -> GroupName:
        at_timeout = at_timeout_of(backend)
        return GroupName(
            name,
            description,
            self.ranks,
            self.nth,
            backend,
            aligned=True,
            timeout_ms=timeout_ms if at_timeout is not AtTimeout.UNKNOWN else 0,
            at_timeout=at_timeout,
            world=self.world.name,
            world_rank=self.world.rank,
            address=self.address,
        )

    def has_store(self, name: str, description: str, backend: str, timeout_ms: int) -> None:
        """Record that the store is connected, by completing the group's name. See `enter` for the arguments."""
        if self.recorder is not None and self._interval is not None and self._interval.number:
            group = self._group(name, description, backend, timeout_ms)
            self.recorder.tape.names.replace(self._name, group, SPARE_OF_GROUPS)

    def joined(self) -> None:
        """Record that the group exists, and write a heartbeat.

        All members have tapes by now. The heartbeat shows that they were alive at the same time, even if a member
        dies before it knows its run id.
        """
        self._complete(How.CALL, 0)
        self.has_joined = True
        if self.recorder is not None:
            self.recorder.tape.beat()

    def failed(self, error: BaseException) -> None:
        """Record that the creation raised or was interrupted. Do nothing if its end is already recorded."""
        if self._interval is None or self.is_over:
            return
        failure = 0
        try:
            failure = failure_word(self._interval.tape.names, error)
        finally:
            self._complete(How.FAILED, failure)

    def _complete(self, how: How, failure: int) -> None:
        interval = self._interval
        if interval is not None and interval.number:
            interval.tape.complete(interval.number, interval.entered_ns, time.monotonic_ns(), how, failure)
            self.is_over = True


def _call_site(recorder: Recorder) -> int:
    return recorder.call_paths.name_of(recorder.call_sites.find(0))


@contextlib.contextmanager
def recording_failure(rendezvous: Rendezvous) -> Generator[None, None, None]:
    """Record that a creation failed if the block raises or is interrupted."""
    try:
        yield
    except BaseException as error:
        with guard.guarded("group creation"):
            rendezvous.failed(error)
        raise
