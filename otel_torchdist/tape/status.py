"""The live words of a tape, from one read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.model.rank_state.rescue import NO_RESCUE, Rescue
from otel_torchdist.tape.identity import TapeIdentity


@dataclass(frozen=True, slots=True)
class TapeStatus:
    """The live words of a tape, from one read.

    Attributes:
        run_id: 128 bits; 0 until known.
        run_id_state: State of the ranks' agreement on the run id.
        step: Number of the current step.
        heartbeat_ns: Time of the last heartbeat of our thread in the writer's process, rounded to microseconds. Native
            code that holds the GIL delays heartbeats.
        monotonic_ns: Monotonic clock of the newest clock pair, taken at the heartbeat.
        realtime_ns: Wall clock of the newest clock pair.
        records_dropped: Records that the writer could not write.
        names_dropped: Names recorded as `other` because the dictionary is full.
        overhead_ns: Estimated time spent in our code on the caller's threads.
        overhead_calls: Number of calls that the estimate covers.
        state: The writer's state.
        failure: Name id of the exception that ended the process; 0 for none.
        request: Number of the last request for stacks.
        answer: Number of the last answered request for stacks.
        expects_until_ns: End of an expected wait, of this rank or of other ranks for this rank; 0 for no wait.
        exported_by_rank: Whether its own process exports the tape (`OTEL_PYTHON_TORCHDIST_READER=thread`).
        rescue: Progress of its rescue.
        asked_signal: The signal that asked the process to end; 0 if none was recorded.
        asked_ns: Time of that signal; 0 if none was recorded.
        rpc_worker: Name id of the process's name as an RPC worker; 0 if it is not a worker.
        rpc_threads: Number of its threads that serve calls of other workers.
        backward_thread: Native id of the thread that began the last backward pass.
        backward_since_ns: Start of that backward pass; 0 once it has ended.
        future_thread: Native id of the thread that began the last wait for a future.
        future_since_ns: Start of that wait; 0 once it has ended.
        switched_off_ns: When recording was switched off; 0 if it was not.
        recording_level: How much less than everything is recorded; see `RecordingLevel`.
    """

    run_id: int
    run_id_state: RunIdState
    step: int
    heartbeat_ns: int
    monotonic_ns: int
    realtime_ns: int
    records_dropped: int
    names_dropped: int
    overhead_ns: int
    overhead_calls: int
    state: TapeState
    failure: int
    request: int
    answer: int
    expects_until_ns: int = 0
    exported_by_rank: bool = False
    rescue: Rescue = NO_RESCUE
    asked_signal: int = 0
    asked_ns: int = 0
    rpc_worker: int = 0
    rpc_threads: int = 0
    backward_thread: int = 0
    backward_since_ns: int = 0
    future_thread: int = 0
    future_since_ns: int = 0
    switched_off_ns: int = 0
    recording_level: int = 0


MAX_WALL_NS: Final = (1 << 63) - 1
"""Latest time that OTLP can represent. A single span with a later time would make its whole export request fail."""
CLOCK_STEP_NS: Final = 50_000_000
"""Change of the offset above which the wall clock counts as set."""


class WallClock:
    """Converts the monotonic times of one tape to wall-clock times, with a single offset.

    The offset changes only if the wall clock was set (the newest clock pair differs by more than 50 ms). Following the
    jitter of every pair would shift spans relative to each other.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Start with the clock pair from the creation of the tape."""
        self._offset_ns = identity.realtime_ns - identity.monotonic_ns

    def update(self, status: TapeStatus) -> None:
        """Adopt the offset of the newest clock pair if the wall clock was set."""
        offset_ns = status.realtime_ns - status.monotonic_ns
        if abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS:
            self._offset_ns = offset_ns

    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a monotonic time of this tape to nanoseconds since the epoch."""
        return min(max(monotonic_ns + self._offset_ns, 0), MAX_WALL_NS)
