"""The exceptions that this package raises to its callers. None of them ever reaches the training."""

from __future__ import annotations


class TapeError(Exception):
    """A tape cannot be created or read; the message says which and why."""
