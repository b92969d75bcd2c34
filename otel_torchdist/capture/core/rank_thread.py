"""The rank thread, capture's only thread in the training process.

It wakes once a second (heartbeat, stack requests). While an asynchronous operation is in flight it wakes every 20 ms,
or every 60 ms if new operations arrive, since each of them polls, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from otel_torchdist import guard

BEAT_S: Final = 1.0
POLL_S: Final = 0.02
"""Polling every 2 ms slows a training loop by 12 %; every 20 ms has no visible cost."""
RELAXED_POLL_S: Final = 0.06
"""A wake-up costs about 80 µs, mostly for cold caches: 0.4 % of a core if it happens every 20 ms."""
IDLE_POLLS: Final = 25
"""Number of empty polls after which the thread wakes once a second again."""


class RankThread:
    """Thread that calls `beat` once a second, and `poll` more often while operations are in flight."""

    def __init__(self, beat: Callable[[], None], poll: Callable[[], bool], record_count: Callable[[], int]) -> None:
        """Initialize the thread without starting it.

        Args:
            beat: Called once a second.
            poll: Polls operations in flight. Returns whether any are left.
            record_count: Returns the number of records so far.
        """
        self._beat = beat
        self._poll = poll
        self._record_count = record_count
        self.forget_in_child()

    def forget_in_child(self) -> None:
        """Drop the thread, which does not exist in a forked child."""
        self._polling = False
        # Released only to wake the thread. `Event.wait` costs twice as much: it creates a lock each time.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="otel-torchdist-watch", daemon=True)
            self._thread.start()

    def poll_soon(self) -> None:
        """Start polling. Cheap if the thread polls already, because every operation calls this."""
        if not self._polling:
            self._polling = True
            self._wake()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread."""
        self._stopping = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _wake(self) -> None:
        try:
            self._asleep.release()
        except RuntimeError as error:  # the thread is about to wake anyway
            guard.pass_on(error)

    def _run(self) -> None:
        next_beat = time.monotonic()
        empty_polls = records = 0
        while not self._stopping:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_S
                with guard.guarded("watch"):
                    self._beat()
            records, before = self._record_count(), records
            pause = RELAXED_POLL_S if records != before else POLL_S
            self._asleep.acquire(timeout=pause if self._polling else max(next_beat - time.monotonic(), 0))
            if not self._polling:
                continue
            empty_polls = 0 if self._poll_guarded() else empty_polls + 1
            if empty_polls < IDLE_POLLS:
                continue
            empty_polls = 0
            self._polling = False
            self._polling = self._poll_guarded()  # an operation may have started in between

    def _poll_guarded(self) -> bool:
        with guard.guarded("poll"):
            return self._poll()
        return False
