"""Converts times of a device's events to the host's clock.

A device only reports the time between two events. So one event, the anchor, is recorded on an idle stream of our own,
and the host's clock is read before and after it. The error of a time is the sum of:

- half the time between the two readings, which is at most 2 ms and usually about 0.02 ms;
- the drift between the two clocks since the anchor, which is renewed every second: 50 ppm make 0.05 ms;
- the float32 rounding of the elapsed milliseconds: 0.00006 ms after a second, but 4 ms after a day.

Durations between two events do not depend on the anchor and are accurate to a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from otel_torchdist.capture.core.cuda.driver import DeviceDriver
from otel_torchdist.model.kinds import How

RENEW_AFTER_NS: Final = 1_000_000_000
MAX_ANCHOR_AGE_NS: Final = 60_000_000_000
"""Maximum age of the anchor. Beyond it, an event gets the time at which a poll found it done."""
MAX_UNCERTAINTY_NS: Final = 2_000_000
GOOD_UNCERTAINTY_NS: Final = 50_000
MAX_TRIES: Final = 3
"""Maximum number of tries. The best counts. The host's second reading is late if another thread has the GIL."""


class DeviceClock:
    """The clock of one device. Used by one thread. Waits for the device at most `MAX_UNCERTAINTY_NS` per try."""

    def __init__(self, driver: DeviceDriver, device: int, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._driver = driver
        self._device = device
        self._now = now
        self._stream = driver.create_stream(device)
        self._anchor = driver.create_event(device)
        self._trial = driver.create_event(device)
        self._anchored_ns: int | None = None

    def renew(self) -> None:
        """Replace the anchor if it is too old. It stays if the device does not answer in time."""
        now_ns = self._now()
        if self._anchored_ns is not None and now_ns - self._anchored_ns < RENEW_AFTER_NS:
            return
        best_uncertainty_ns = MAX_UNCERTAINTY_NS
        for _ in range(MAX_TRIES):
            before_ns, after_ns = self._record_trial()
            uncertainty_ns = after_ns - before_ns
            if uncertainty_ns >= best_uncertainty_ns:
                continue
            best_uncertainty_ns = uncertainty_ns
            self._anchored_ns = before_ns + uncertainty_ns // 2
            self._anchor, self._trial = self._trial, self._anchor
            if uncertainty_ns <= GOOD_UNCERTAINTY_NS:
                return

    def _record_trial(self) -> tuple[int, int]:
        """Record an event on an idle stream. Return the time before, and the time when it was done or timed out."""
        before_ns = after_ns = self._now()
        self._driver.record(self._trial, self._device, self._stream)
        while not self._driver.is_done(self._trial) and after_ns - before_ns < MAX_UNCERTAINTY_NS:
            after_ns = self._now()
        return before_ns, self._now()

    def date(self, event: int) -> tuple[int, How]:
        """Return the time of a completed event, in ns of the host's monotonic clock, and the source of the time."""
        now_ns = self._now()
        if self._anchored_ns is None or now_ns - self._anchored_ns > MAX_ANCHOR_AGE_NS:
            return now_ns, How.POLL
        since_anchor_ns = round(self._driver.elapsed_ms(self._anchor, event) * 1e6)
        return min(self._anchored_ns + since_anchor_ns, now_ns), How.EVENT

    def events(self) -> list[int]:
        """Return the clock's events."""
        return [self._anchor, self._trial]
