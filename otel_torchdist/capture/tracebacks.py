"""Hides our own frames from tracebacks that the program, or another worker, is going to see."""

from __future__ import annotations


def hide_frame(error: BaseException) -> None:
    """Take the frame that has just caught an exception out of its traceback; a bare `raise` must follow.

    That statement does not add the frame again. Python 3.10 keeps the traceback elsewhere, and shows the frame.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
