"""The conversion of device times to the host's clock, and the error bounds of times on the tape."""

from __future__ import annotations

import random
from typing import Any

import pytest

from otel_torchdist.capture.core.cuda.clock import MAX_ANCHOR_AGE_NS, RENEW_AFTER_NS, DeviceClock
from otel_torchdist.model.kinds import How
from tests.support.devices.simulated_device import MS, RECORD_NS, SimulatedDevice

SECOND = 1_000 * MS
STREAM = 7
SLOW_NS = 900_000
DRIFT = 0.00005
"""Far more than the drift between clocks of one machine."""


class HostClock:
    """The host's clock, which passes only when it is read or the test advances it.

    Attributes:
        look_ns: How long a reading takes: what the host needs between two calls.
    """

    def __init__(self, look_ns: int = 2_000) -> None:
        self.ns = 1_000 * SECOND
        self.look_ns = look_ns

    def __call__(self) -> int:
        """The time, in nanoseconds."""
        self.ns += self.look_ns
        return self.ns


class LateDevice(SimulatedDevice):
    """A device whose answers reach our thread up to 0.9 ms late, as if another thread had the GIL."""

    late = random.Random(7)

    def is_done(self, event: int) -> bool:
        """Answer late."""
        done = super().is_done(event)
        host: Any = self.now
        host.ns += self.late.choice((0, 0, 900_000))
        return done


class SlowDevice(SimulatedDevice):
    """A device that takes 0.9 ms until it reaches an event."""

    def record(self, event: int, device: int, stream: int) -> None:
        """Enqueue an event behind other work."""
        self.launch(stream, SLOW_NS)
        super().record(event, device, stream)


class TimedDevice:
    """A device, its clock, and an event with a known time."""

    def __init__(self, drift: float = DRIFT, device: type[SimulatedDevice] = SimulatedDevice) -> None:
        self.host = HostClock()
        self.device = device(self.host, drift)
        self.clock = DeviceClock(self.device, 0, self.host)
        self.event = self.device.create_event(0)

    def error_ns(self) -> tuple[int, How]:
        """Return the clock's error for an event that happens now, and the precision that it claims."""
        self.device.record(self.event, 0, STREAM)
        place = self.device.events[self.event].place
        assert place is not None
        self.host.ns += 10 * MS
        assert self.device.is_done(self.event)
        dated_ns, how = self.clock.date(self.event)
        assert place.end_ns is not None
        return abs(dated_ns - place.end_ns), how


def test_the_error_stays_within_what_is_promised() -> None:
    """In ten minutes of a drifting clock, the error is at most half the bracket plus a second's drift."""
    timed = TimedDevice()
    errors: list[int] = []
    for _ in range(600):
        timed.clock.renew()
        error_ns, how = timed.error_ns()
        assert how is How.EVENT
        errors.append(error_ns)
        timed.host.ns += SECOND
    bracket_ns = RECORD_NS + 4 * timed.host.look_ns
    assert max(errors) <= bracket_ns + DRIFT * (RENEW_AFTER_NS + SECOND)


def test_the_anchor_is_renewed_no_more_than_once_a_second() -> None:
    """Readings in quick succession share an anchor."""
    timed = TimedDevice()
    timed.clock.renew()
    asked = timed.device.asked
    for _ in range(20):
        timed.clock.renew()
    assert timed.device.asked == asked


def test_before_there_is_an_anchor_and_long_after_nothing_exact_is_claimed() -> None:
    """Without a recent anchor, an event's time is the time at which a poll found it done."""
    timed = TimedDevice()
    assert timed.error_ns()[1] is How.POLL
    timed.clock.renew()
    assert timed.error_ns()[1] is How.EVENT
    timed.host.ns += MAX_ANCHOR_AGE_NS
    error_ns, how = timed.error_ns()
    assert how is How.POLL
    assert error_ns == pytest.approx(10 * MS, abs=MS)


def test_a_device_that_does_not_answer_is_not_waited_for() -> None:
    """If the device does not answer within 2 ms, the attempt ends and the old anchor stays."""
    timed = TimedDevice()
    timed.clock.renew()
    stream = next(stream for stream in timed.device.streams if stream != STREAM)
    blocker = timed.device.launch(stream, None)
    timed.host.ns += 2 * SECOND
    began_ns = timed.host.ns
    timed.clock.renew()
    assert timed.host.ns - began_ns < 20 * MS
    assert timed.error_ns()[1] is How.EVENT
    timed.device.release(blocker)
    timed.host.ns += SECOND
    timed.clock.renew()
    assert timed.error_ns()[0] < 0.1 * MS


def test_the_narrowest_reading_counts() -> None:
    """Single readings may be late by milliseconds because another thread has the GIL. The anchor uses the best one."""
    timed = TimedDevice(drift=0.0, device=LateDevice)
    errors: list[int] = []
    for _ in range(200):
        timed.host.ns += 2 * SECOND
        timed.clock.renew()
        errors.append(timed.error_ns()[0])
    assert max(errors) <= MS
    assert sorted(errors)[len(errors) // 2] <= 0.05 * MS


def test_a_slow_reading_is_off_by_half_of_it() -> None:
    """The anchor is in the middle between the two readings, where the maximum error is smallest."""
    timed = TimedDevice(drift=0.0, device=SlowDevice)
    timed.clock.renew()
    assert timed.error_ns() == (pytest.approx(SLOW_NS / 2, abs=10 * timed.host.look_ns), How.EVENT)


def test_events_from_before_the_anchor() -> None:
    """Events before the newest anchor are dated as exactly as events after it."""
    timed = TimedDevice(drift=0.0)
    timed.device.record(timed.event, 0, STREAM)
    place = timed.device.events[timed.event].place
    timed.host.ns += 500 * MS
    timed.clock.renew()
    dated_ns, how = timed.clock.date(timed.event)
    assert place is not None
    assert place.end_ns is not None
    assert (how, dated_ns) == (How.EVENT, pytest.approx(place.end_ns, abs=0.05 * MS))
