"""The one thread that we run inside the training process.

It wakes once a second (heartbeat, request for stacks), and more often only while an asynchronous operation is open:
every 20 ms, or every 60 ms while further operations come, for each of these looks at what is open too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from otel_torchdist import guard

BEAT_S: Final = 1.0
POLL_S: Final = 0.02
"""Polling at 2 ms costs a training loop 12 %; at 20 ms it cannot be seen."""
RELAXED_POLL_S: Final = 0.06
"""A wake costs some 80 µs, mostly for cold caches: every 20 ms that is 0.4 % of a core."""
IDLE_POLLS: Final = 25
"""Empty polls after which the thread goes back to its slow beat."""


class RankThread:
    """Calls `beat` once a second and `poll` more often while there is something to poll for."""

    def __init__(self, beat: Callable[[], None], poll: Callable[[], bool], calls: Callable[[], int]) -> None:
        """Prepare.

        Args:
            beat: Called once a second.
            poll: Looks at what is open; returns whether anything is.
            calls: How many operations there have been.
        """
        self._beat = beat
        self._poll = poll
        self._calls = calls
        self._polling = False
        # Held but for a moment. To wait for an event, which makes a lock each time, costs twice as much.
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
        """Something to poll for exists. Cheap when the thread polls already, for it is on the path of operations."""
        if not self._polling:
            self._polling = True
            self._wake()

    def stop(self, timeout_s: float) -> None:
        """End the thread."""
        self._stopping = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _wake(self) -> None:
        try:
            self._asleep.release()
        except RuntimeError as error:  # it is about to wake anyway
            guard.pass_on(error)

    def _run(self) -> None:
        next_beat = time.monotonic()
        empty_polls = calls = 0
        while not self._stopping:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_S
                with guard.guarded("watch"):
                    self._beat()
            calls, before = self._calls(), calls
            pause = RELAXED_POLL_S if calls != before else POLL_S
            self._asleep.acquire(timeout=pause if self._polling else max(next_beat - time.monotonic(), 0))
            if not self._polling:
                continue
            empty_polls = 0 if self._poll_guarded() else empty_polls + 1
            if empty_polls < IDLE_POLLS:
                continue
            empty_polls = 0
            self._polling = False
            self._polling = self._poll_guarded()  # one may have come in between

    def _poll_guarded(self) -> bool:
        with guard.guarded("poll"):
            return self._poll()
        return False
