"""The live words of a tape, read at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.model.rescue import NO_RESCUE, Rescue
from otel_torchdist.tape.identity import TapeIdentity


@dataclass(frozen=True, slots=True)
class TapeStatus:
    """The live words of a tape, read at one moment.

    Attributes:
        run_id: 128 bits; 0 until known.
        run_id_state: How far ranks have agreed on it.
        step: Number of the current step.
        heartbeat_ns: When our thread in the writer last woke, to the microsecond; it cannot while native code holds
            the GIL.
        monotonic_ns: Monotonic half of the newest clock pair, which is taken at the heartbeat.
        realtime_ns: Wall-clock half of that pair.
        records_dropped: Records that the writer could not write.
        names_dropped: Names that became `other` because the dictionary is full.
        overhead_ns: Estimated time spent in our own code on the caller's threads.
        overhead_calls: Calls behind that estimate.
        state: The writer's own state.
        failure: Name id of the exception that ended the process (0 when there is none).
        request: Number of the last request for stacks.
        answer: Number of the last request that was answered.
        expects_until_ns: Until when the rank expects to wait, or others to wait for it; 0 for no such wait.
        exported_by_rank: Whether its own process exports the tape (`OTEL_PYTHON_TORCHDIST_READER=thread`).
        rescue: How far its rescue has come.
        asked_signal: The signal that has asked the process to end; 0 for none that was recorded.
        asked_ns: When it came.
        rpc_worker: Name id of the process's name as a worker of RPC; 0 if it is none.
        rpc_threads: How many of its threads serve the calls of other workers.
        backward_thread: Native id of the thread that has begun a backward pass last.
        backward_since_ns: Since when it is in that; 0 if it is in none.
        future_thread: Native id of the thread that has begun to wait for a future last.
        future_since_ns: Since when it waits for that; 0 if it waits for none.
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


MAX_WALL_NS: Final = (1 << 63) - 1
"""OTLP cannot represent later times, and one such span would make the export of its whole request fail."""
CLOCK_STEP_NS: Final = 50_000_000


class WallClock:
    """Converts the times of one tape with a single offset.

    The offset changes only when the wall clock has been set (the newest pair differs by more than 50 ms): following
    the jitter of every pair would shift spans relative to each other.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Start from the clock pair taken when the tape was created."""
        self._offset_ns = identity.realtime_ns - identity.monotonic_ns

    def update(self, status: TapeStatus) -> None:
        """Adopt the offset of the newest clock pair if the wall clock has been set."""
        offset_ns = status.realtime_ns - status.monotonic_ns
        if abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS:
            self._offset_ns = offset_ns

    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a monotonic time of this tape to nanoseconds since the epoch."""
        return min(max(monotonic_ns + self._offset_ns, 0), MAX_WALL_NS)
