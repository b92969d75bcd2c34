"""Requests the stack of one thread of a rank with a signal, when our thread in the rank cannot answer: the GIL is held.

The signal would kill a process that does not handle it. So it is sent only to a process that has offered a handler,
that verifiably still has it, and that is verifiably the writer of the tape.

And it is sent only to a process that runs no Python. `faulthandler` can crash while it walks the frames of a thread
that enters and leaves frames (seen on Python 3.10 to 3.13, with some within a hundred signals). While native code holds
the GIL, no frame changes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.node.job.requests.stacks import SignalOffer, decode_offer, offer_path, parse_stack
from otel_torchdist.node.processes import pidfd
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS, can_signal
from otel_torchdist.system.files.others import open_regular, read_part
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks, shares_pids
from otel_torchdist.tape.mapped import MappedTape

MAX_FILE_BYTES: Final = 1 << 20
"""Maximum size of a rank's file. Beyond it, no more stacks are requested: the file is in memory."""
_HEAD_BYTES: Final = 64
_NOT_RUNNING: Final = frozenset("DTtZXx")


@dataclass(frozen=True, slots=True)
class StackSignal:
    """A request for a stack that was sent as a signal.

    Attributes:
        file: File to which the stack is written.
        offset: Offset of the stack in the file.
        owner: The user who must own the file.
        offer: The process's description of its handler.
        process: Process id.
        thread: Native thread id.
    """

    file: Path
    offset: int
    owner: int
    offer: SignalOffer
    process: int
    thread: int

    def answer(self) -> ThreadStack | None:
        """Return the thread's stack; None until it is completely written."""
        try:
            # In this order: a handler that has begun to write, and no longer runs, has finished.
            if self.file.stat().st_size <= self.offset or not self._is_over():
                return None
            frames = parse_stack(read_part(self.file, self.offset, MAX_FILE_BYTES, self.owner).decode(errors="replace"))
        except OSError:
            return None
        return ThreadStack(self.thread, "", frames) if frames else None

    def _is_over(self) -> bool:
        state = _thread_state(self.process, self.thread)
        return state is not None and state.is_idle(self.offer.signal)


def ask_by_signal(tape: MappedTape, thread: int, flag: int = pidfd.PIDFD_THREAD) -> StackSignal | None:
    """Request the stack of one thread of a tape's writer, without waiting for it.

    Args:
        tape: The tape.
        thread: Native thread id; 0 for the main thread. Before Linux 6.9 it is always the main thread.
        flag: See `pidfd.open_thread`.

    Returns:
        The request; None if no signal was sent, because it might do harm.
    """
    identity = tape.identity
    if not _is_in_reach(identity) or not _is_silent(tape):
        return None
    try:
        target, thread = pidfd.open_thread(identity.pid, thread or identity.pid, flag)
    except OSError:
        return None
    try:
        # Checked after the pidfd was opened: until that process is reaped, the pid refers to it.
        request = _prepare(tape, thread)
        if request is not None:
            pidfd.send(target, request.offer.signal)
        return request
    except OSError:
        return None
    finally:
        os.close(target)


def _is_in_reach(identity: TapeIdentity) -> bool:
    """Return whether the writer's pid is valid in this PID namespace, and is another process."""
    return shares_pids(identity) and identity.pid != os.getpid()


def _is_silent(tape: MappedTape) -> bool:
    """Return whether our thread in the rank, which should run every second, is late and has not answered."""
    try:
        status = tape.status()
    except TapeError:
        return False
    return status.answer != status.request and time.monotonic_ns() - status.heartbeat_ns > HEARTBEAT_LATE_NS


def _prepare(tape: MappedTape, thread: int) -> StackSignal | None:
    """Check all conditions for a signal; return the request, or None if one of them does not hold.

    Raises:
        OSError: A condition cannot be checked.
    """
    pid, file = tape.identity.pid, offer_path(tape.path)
    if tape.holder() != pid or process_start_ticks(pid) != tape.identity.pid_start_ticks:
        return None
    if not can_signal(tape.owner, pid):
        return None
    with open(open_regular(file, tape.owner), "rb") as stream:
        info = os.fstat(stream.fileno())
        offer = decode_offer(stream.read(_HEAD_BYTES))
    if offer is None or info.st_size > MAX_FILE_BYTES:
        return None
    # If the process has closed or replaced the file since, its descriptor is closed or refers to another file.
    if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{offer.descriptor}"), info):
        return None
    state = _thread_state(pid, thread)
    if state is None or not state.takes(offer.signal):
        return None
    return StackSignal(file, info.st_size, tape.owner, offer, pid, thread)


@dataclass(frozen=True, slots=True)
class _ThreadState:
    """A thread's state and signal masks, as the kernel reports them; bit 0 is signal 1."""

    state: str
    caught: int
    blocked: int
    pending: int

    def takes(self, number: int) -> bool:
        """Return whether a signal sent now would run a handler."""
        is_caught = bool(self.caught >> (number - 1) & 1)
        return is_caught and self.is_idle(number) and self.state not in _NOT_RUNNING

    def is_idle(self, number: int) -> bool:
        """Return whether a signal is neither pending nor blocked; it is blocked while its handler runs."""
        return not (self.pending | self.blocked) >> (number - 1) & 1


def _thread_state(pid: int, thread: int) -> _ThreadState | None:
    """Read the state of a thread; None if the process has no such thread."""
    try:
        lines = Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    try:
        pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
        return _ThreadState(fields["State"][:1], int(fields["SigCgt"], 16), int(fields["SigBlk"], 16), pending)
    except (KeyError, ValueError):
        return None
