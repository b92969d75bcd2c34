"""Delays signals while several files are replaced."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Generator[None]:
    """Delay signals that would end the command between the replacement of two files."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
