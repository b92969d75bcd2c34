"""What a Work says when it is asked. Some libraries bring Works of their own, in Python."""

from __future__ import annotations

from typing import Any

from otel_torchdist import _guard


@_guard.calls_plug_ins
def is_completed(work: Any) -> bool:
    """Whether an operation is over, as its Work says."""
    return work.is_completed()


@_guard.calls_plug_ins
def failure_of(work: Any) -> Exception | None:
    """Why a completed Work of torch's own failed; `Work.exception` would warn that it is deprecated."""
    try:
        future = work.get_future()
    except RuntimeError as error:  # this backend has none
        _guard.pass_on(error)
        return None
    try:
        if future.done():
            future.value()
    except Exception as error:
        _guard.pass_on(error)
        return error
    return None
