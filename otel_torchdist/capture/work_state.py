"""What a Work says when it is asked. Some libraries bring Works of their own, in Python."""

from __future__ import annotations

from typing import Any

from otel_torchdist import _guard


@_guard.calls_plug_ins
def is_under_way(work: Any) -> bool:
    """Whether a Work says that its operation is not over; one that cannot be asked does not."""
    try:
        return not work.is_completed()
    except Exception as error:
        _guard.pass_on(error)
        return False


@_guard.calls_plug_ins
def failure_of(work: Any) -> Exception | None:
    """Why a completed Work of torch's own failed; `Work.exception` would warn that it is deprecated."""
    try:
        future = work.get_future()
    except Exception as error:  # this backend has none
        _guard.pass_on(error)
        return None
    try:
        if future.done():
            future.value()
    except Exception as error:
        _guard.pass_on(error)
        return error
    return None
