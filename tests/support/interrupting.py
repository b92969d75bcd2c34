"""Interrupts a function of ours as a signal handler does, at the moment at which it returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest


@contextmanager
def interrupted_behind(function: Callable[..., Any]) -> Iterator[None]:
    """Raise `KeyboardInterrupt` where a function in Python has returned in this thread; the block has to raise it."""
    code = function.__code__

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame.f_code is code:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.setprofile(None)
