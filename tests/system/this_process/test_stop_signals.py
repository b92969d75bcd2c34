"""Signals as requests to stop, and which errors they explain."""

from __future__ import annotations

import errno
import signal

import pytest

from otel_torchdist.system.this_process.commands import StopSignals


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_errors_before_a_signal(number: int) -> None:
    """An error is no request to stop, not even of the kind that a lost terminal gives, unless it is lost."""
    error = OSError(number, "on a disk")
    with StopSignals() as stop:
        assert (stop.explain(error), stop.received) == (False, None)
        signal.raise_signal(signal.SIGTERM)
        assert (stop.explain(error), stop.received) == (True, signal.SIGTERM)
