"""The cyclic garbage collector, in commands: what they import and what they read are many objects, and no garbage."""

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


@contextmanager
def keeping_what_is_imported() -> Generator[None]:
    """Modules stay; looking for garbage among them takes a sixth of a command's start, and again as long as it runs.

    Not for a process of the user's, either.
    """
    with without_collecting_garbage():
        yield
        gc.freeze()
