"""The creation of one group on the tape: an operation that is open until every member has joined."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, Protocol

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.backends import at_timeout_of
from otel_torchdist.capture.core.failures import failure_word
from otel_torchdist.capture.core.groups.worlds import DEFAULT_WORLD, PlaceInWorld
from otel_torchdist.capture.core.intervals import RecordedInterval
from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.names import SPARE_OF_GROUPS, AtTimeout, GroupName, SignatureName

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from otel_torchdist.capture.core.recorder import Recorder

NOT_COUNTED: Final = -1


class GroupEvents(Protocol):
    """Receiver of group events."""

    def default_group_begins(self, rank: int, world_size: int) -> Recorder | None:
        """Prepare for a default group that is about to be created; return its recorder."""
        ...

    def world_begins(self, place: PlaceInWorld, world_size: int) -> Recorder | None:
        """Prepare for a world that is about to be made by hand; return the recorder of its operations."""
        ...

    def place_of(self, group: ProcessGroup) -> PlaceInWorld:
        """Which world a group is of."""
        ...

    def current_recorder(self) -> Recorder | None:
        """Return the recorder in use; None if there is none."""
        ...

    def group_created(self, group: ProcessGroup, rendezvous: Rendezvous) -> None:
        """Register a new group of which this rank is a member."""
        ...

    def default_group_set(self, group: ProcessGroup | None) -> None:
        """Follow torch's default group, which is `group` from now on, or none."""
        ...


class Rendezvous:
    """The creation of one group, recorded as an operation that is open until every member has joined.

    A signal handler may raise at any moment before, in or after it. No record may stay open because of that: torch has
    given up the creation, and nothing would ever complete the record. So this object exists before its record does, and
    the frame that calls torch's own code reports the end to it.

    Attributes:
        recorder: Recorder of the operation; None while it is not recorded.
        ranks: Global ranks of the members.
        nth: How many groups with these members came before; `NOT_COUNTED` before `enter`.
        place: Which world the group is of.
        thread: Native id of the thread that creates it.
        python_thread: What Python calls that thread.
        address: Where the ranks meet; '' if that is not known.
        is_over: Whether its end is recorded.
        has_joined: Whether the group exists.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.ranks: tuple[int, ...] = ()
        self.nth = NOT_COUNTED
        self.place = DEFAULT_WORLD
        self.thread = threading.get_native_id()
        self.python_thread = threading.get_ident()
        self.is_over = self.has_joined = False
        self._interval: RecordedInterval | None = None
        self.address = ""
        self._name = 0

    def enter(
        self,
        recorder: Recorder,
        kind: str,
        ranks: tuple[int, ...],
        name: str,
        description: str,
        backend: str,
        timeout_ms: int,
        place: PlaceInWorld = DEFAULT_WORLD,
        address: str = "",
    ) -> None:
        """Publish the operation as entered.

        Args:
            recorder: Recorder of the operation.
            kind: The function that creates the group, as users know it.
            ranks: Global ranks of the members.
            name: The group's name in torch.
            description: What the group is for.
            backend: The backend as requested.
            timeout_ms: The timeout of its operations in milliseconds; 0 if it is not known.
            place: Which world the group is of.
            address: Where the ranks meet; '' if that is not known.
        """
        self.recorder = recorder
        self.ranks = ranks
        self.place = place
        self.nth = recorder.groups_before(
            ranks, place.world
        )  # known before it is counted, wherever that is interrupted
        recorder.count_group(ranks, place.world)
        self.address = address
        tape = recorder.tape
        self._name = tape.names.intern(self._group(name, description, backend, timeout_ms), SPARE_OF_GROUPS)
        signature = SignatureName(kind, reduce_op="", shapes=(), dtypes=(), device="", tensors=0)
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
            world=self.place.world,
            here=self.place.here,
            address=self.address,
        )

    def has_store(self, name: str, description: str, backend: str, timeout_ms: int) -> None:
        """Record that the store has been reached, by what is known of the group from then on; see `enter`."""
        if self.recorder is not None and self._interval is not None and self._interval.number:
            group = self._group(name, description, backend, timeout_ms)
            self.recorder.tape.names.replace(self._name, group, SPARE_OF_GROUPS)

    def over(self) -> None:
        """Record that the group exists, and that this process lives.

        All members' tapes have been created by then. So a rank that dies at once, before it knows the id of its run, is
        known to have lived at the same time as the others.
        """
        self._complete(How.CALL, 0)
        self.has_joined = True
        if self.recorder is not None:
            self.recorder.tape.beat()

    def failed(self, error: BaseException) -> None:
        """Record that the creation raised or was interrupted. Does nothing once it is over."""
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
def recorded(rendezvous: Rendezvous) -> Generator[None, None, None]:
    """Record the end of a creation that raises or is interrupted inside."""
    try:
        yield
    except BaseException as error:
        with guard.guarded("group creation"):
            rendezvous.failed(error)
        raise
