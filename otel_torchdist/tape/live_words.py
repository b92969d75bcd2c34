"""The writer's state at the head of its tape, in words that it updates in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.model.rank_state.rescue import Rescue
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.identity import clock_pair
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.names.writer import NamesWriter

_MASK_64: Final = (1 << 64) - 1


class ProfileRequest(NamedTuple):
    """A request for a profile, encoded in one word.

    Attributes:
        number: Its number, below 2^28.
        seconds: Duration of the sampling, to a tenth.
        rate: Samples per second.
    """

    number: int
    seconds: float
    rate: int

    def encode(self) -> int:
        """Encode the request."""
        return (self.number & 0xFFF_FFFF) << 24 | (round(self.seconds * 10) & 0xFFFF) << 8 | (self.rate & 0xFF)

    @classmethod
    def decode(cls, value: int) -> ProfileRequest:
        """Decode a request. Its number is 0 if there is no request."""
        return cls(value >> 24, (value >> 8 & 0xFFFF) / 10, value & 0xFF)


_ASKED_WRAP_US: Final = 1 << layout.ASKED_TIME_BITS


def asked_at_ns(asked: int, heartbeat_ns: int) -> int:
    """Return the monotonic time of the signal that asked the process to end, in nanoseconds; 0 without a signal.

    The word stores the time modulo 407 days. A process ends soon after the signal, so of all possible times the
    nearest to the last heartbeat is the right one.

    Args:
        asked: Value of the word ASKED.
        heartbeat_ns: Time of the last heartbeat.
    """
    if not asked >> layout.ASKED_TIME_BITS:
        return 0
    heartbeat_us = heartbeat_ns // 1000
    since_us = (asked - heartbeat_us + _ASKED_WRAP_US // 2) % _ASKED_WRAP_US - _ASKED_WRAP_US // 2
    at_us = heartbeat_us + since_us
    return (at_us if at_us >= 0 else at_us + _ASKED_WRAP_US) * 1000


class LiveWords:
    """Writes the live words of a tape.

    Attributes:
        names: The dictionary of the tape.
    """

    names: NamesWriter
    _words: memoryview

    def begin_live_words(self) -> None:
        """Write the initial values."""
        for word in layout.SEALED_LIVE_WORDS:
            self._words[word] = seals.seal_live(word, 0)
        self._words[LiveWord.NEXT_NUMBER] = 1
        self._words[LiveWord.STATE] = TapeState.RUNNING
        self._words[LiveWord.RUN_ID_STATE] = seals.run_id_seal(0, RunIdState.NONE)
        self.beat()

    def add_overhead(self, nanoseconds: int, calls: int) -> None:
        """Add to the estimated time spent in our code."""
        self._words[LiveWord.OVERHEAD_NS] += nanoseconds
        self._words[LiveWord.OVERHEAD_CALLS] += calls

    def overhead_ns(self) -> int:
        """Return the estimated time spent in our code so far."""
        return self._words[LiveWord.OVERHEAD_NS]

    def set_run_id(self, run_id: int, state: RunIdState) -> None:
        """Publish the run's id. The state is NONE while the two halves change, and is written last."""
        words = self._words
        if run_id != words[LiveWord.RUN_ID_HIGH] << 64 | words[LiveWord.RUN_ID_LOW]:
            words[LiveWord.RUN_ID_STATE] = seals.run_id_seal(0, RunIdState.NONE)
            words[LiveWord.RUN_ID_HIGH] = run_id >> 64
            words[LiveWord.RUN_ID_LOW] = run_id & _MASK_64
        words[LiveWord.RUN_ID_STATE] = seals.run_id_seal(run_id, state)

    def beat(self, clocks: Callable[[], tuple[int, int]] = clock_pair) -> None:
        """Publish a heartbeat, which proves that Python threads run, and the clock pair.

        Args:
            clocks: Reads the monotonic clock and the wall clock, in nanoseconds.
        """
        words = self._words
        monotonic_ns, realtime_ns = clocks()
        offset_us = max(realtime_ns - monotonic_ns, 0) // 1000
        words[LiveWord.CLOCK_OFFSET_US] = seals.seal_live(LiveWord.CLOCK_OFFSET_US, offset_us)
        words[LiveWord.HEARTBEAT_US] = seals.seal_live(LiveWord.HEARTBEAT_US, monotonic_ns // 1000)
        words[LiveWord.NAMES_DROPPED] = self.names.dropped

    def claim_export(self) -> None:
        """Publish that this process exports its own tape, so that agents do not."""
        self._words[LiveWord.EXPORTED_BY_RANK] = seals.seal_live(LiveWord.EXPORTED_BY_RANK, 1)

    def expect_until(self, monotonic_ns: int) -> None:
        """Publish when an expected wait ends, of this rank or of other ranks for this rank; 0 for no wait."""
        value = seals.seal_live(LiveWord.EXPECTED_UNTIL_US, monotonic_ns // 1000)
        self._words[LiveWord.EXPECTED_UNTIL_US] = value

    def set_rpc_worker(self, name: int, threads: int) -> None:
        """Publish that this process is an RPC worker: its name's id, and the number of threads that serve calls."""
        self._words[LiveWord.RPC_WORKER] = seals.seal_live(LiveWord.RPC_WORKER, name)
        self._words[LiveWord.RPC_THREADS] = seals.seal_live(LiveWord.RPC_THREADS, threads)

    def begin_backward(self, thread: int, monotonic_ns: int) -> None:
        """Publish that a thread, given by its native id, has begun a backward pass."""
        self._begin_interval(LiveWord.BACKWARD_THREAD, LiveWord.BACKWARD_US, thread, monotonic_ns)

    def end_backward(self, thread: int) -> None:
        """Publish that a thread's backward pass has ended, unless another thread has begun one meanwhile."""
        self._end_interval(LiveWord.BACKWARD_THREAD, LiveWord.BACKWARD_US, thread)

    def begin_future(self, thread: int, monotonic_ns: int) -> None:
        """Publish that a thread, given by its native id, has begun to wait for a future."""
        self._begin_interval(LiveWord.FUTURE_THREAD, LiveWord.FUTURE_US, thread, monotonic_ns)

    def end_future(self, thread: int) -> None:
        """Publish that a thread's wait for a future has ended, unless another thread has begun to wait meanwhile."""
        self._end_interval(LiveWord.FUTURE_THREAD, LiveWord.FUTURE_US, thread)

    def _begin_interval(self, thread_word: LiveWord, since: LiveWord, thread: int, monotonic_ns: int) -> None:
        # Clear the time first: otherwise a reader could combine the new thread with the old thread's time.
        self._words[since] = seals.seal_live(since, 0)
        self._words[thread_word] = seals.seal_live(thread_word, thread)
        self._words[since] = seals.seal_live(since, monotonic_ns // 1000)

    def _end_interval(self, thread_word: LiveWord, since: LiveWord, thread: int) -> None:
        if self._words[thread_word] == seals.seal_live(thread_word, thread):
            self._words[since] = seals.seal_live(since, 0)

    def pending_request(self) -> int:
        """Return the number of the pending request for stacks; 0 without one."""
        request = self._words[LiveWord.REQUEST]
        return request if request != self._words[LiveWord.ANSWER] else 0

    def answer_request(self, request: int) -> None:
        """Publish that the stacks for `request` are available beside the tape."""
        self._words[LiveWord.ANSWER] = request

    def pending_profile(self) -> ProfileRequest | None:
        """Return the pending request for a profile; None without one."""
        value = seals.unseal_live(LiveWord.PROFILE_REQUEST, self._words[LiveWord.PROFILE_REQUEST])
        request = ProfileRequest.decode(value or 0)
        return request if request.number not in (0, self._words[LiveWord.PROFILE_ANSWER]) else None

    def answer_profile(self, request: ProfileRequest) -> None:
        """Publish that a profile has ended. Unless it failed, it is available beside the tape."""
        self._words[LiveWord.PROFILE_ANSWER] = request.number

    def set_rescue(self, rescue: Rescue) -> None:
        """Publish the progress of this rank's rescue."""
        self._words[LiveWord.RESCUE] = seals.seal_live(LiveWord.RESCUE, rescue.encode())

    def mark_asked(self, signal: int, monotonic_ns: int) -> None:
        """Publish that a signal has asked this process to end. Later signals are ignored."""
        if not seals.unseal_live(LiveWord.ASKED, self._words[LiveWord.ASKED]):
            value = signal << layout.ASKED_TIME_BITS | monotonic_ns // 1000 & ((1 << layout.ASKED_TIME_BITS) - 1)
            self._words[LiveWord.ASKED] = seals.seal_live(LiveWord.ASKED, value)

    def switch_off(self, monotonic_ns: int) -> None:
        """Publish that recording is switched off, although the process goes on."""
        self._words[LiveWord.SWITCHED_OFF_US] = seals.seal_live(LiveWord.SWITCHED_OFF_US, monotonic_ns // 1000)

    def set_recording_level(self, level: int) -> None:
        """Publish how much less than everything is recorded from about now on."""
        self._words[LiveWord.RECORDING_LEVEL] = seals.seal_live(LiveWord.RECORDING_LEVEL, level)

    def finish(self, state: TapeState, failure: int = 0) -> None:
        """Publish the final state of the process. The tape stays writable: other `atexit` handlers may communicate."""
        self._words[LiveWord.FAILURE] = seals.seal_live(LiveWord.FAILURE, failure)
        self._words[LiveWord.STATE] = state

    def announce_failure(self, failure: int) -> None:
        """Publish the failure that may end the process, with a single store: the process may end right after it."""
        self._words[LiveWord.FAILURE] = seals.seal_live(LiveWord.FAILURE, failure)
