"""The cyclic garbage collector, in commands that make millions of objects at once."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collecting_garbage() -> Generator[None]:
    """Recorded calls are many small objects without cycles; looking for these takes up to half of the time.

    Not for a process of the user's: whether garbage is collected there is the user's choice.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
