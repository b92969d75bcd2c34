"""Settings that are one of several words."""

from __future__ import annotations

from enum import Enum


class ReaderHome(Enum):
    """Where the tapes are read."""

    AGENT = "agent"
    THREAD = "thread"
    NONE = "none"


class CaptureKernel(Enum):
    """What records the calls."""

    AUTO = "auto"
    """The native library if there is one for this torch and Python, else Python."""
    NATIVE = "native"
    """The same, with a warning if there is none."""
    PYTHON = "python"


class NumericsMode(Enum):
    """Which operations' tensors are looked at."""

    OFF = "off"
    SAMPLED = "sampled"
    """Statistics and checksums of a sample."""
    ALL = "all"
    """The same, and whether all inputs of all operations are finite."""


class PageAccess(Enum):
    """Who may see the live page."""

    OFF = "off"
    LOOPBACK = "loopback"
    """Users of this machine, each the jobs of their own."""
    ON = "on"
    """Everyone who reaches the port of `/metrics`."""
