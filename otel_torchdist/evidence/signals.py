"""Exit codes as launchers write them: negative for a signal, or 128 and more where a shell stood between."""

from __future__ import annotations

import signal
from typing import Final

from otel_torchdist.evidence.model import Ended

_BY_SHELL: Final = 128


def ended(code: int, is_first: bool = False, error_file: str = "", error: str = "") -> Ended:
    """Return how a process with this exit code ended."""
    number = -code if code < 0 else code - _BY_SHELL
    name = _name(number) if 0 < number <= 64 else ""
    if code < 0 and not name:
        name = f"signal {number}"
    return Ended(None if name else code, name, is_first, error_file, error)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
