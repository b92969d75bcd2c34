"""When the backend ends a wait, in words."""

from __future__ import annotations

from otel_torchdist.model.names import AtTimeout
from otel_torchdist.units import passed
from otel_torchdist.verdict.deadline import Deadline


def describe_deadline(deadline: Deadline, moment_ns: int) -> str:
    """`NCCL ends the process of rank 0 in 9 min 20 s (timeout 10 min)`.

    Args:
        deadline: The deadline.
        moment_ns: Monotonic time of the moment from which it is seen.
    """
    backend, rank = deadline.backend, deadline.rank
    match deadline.at_timeout:
        case AtTimeout.RAISES:
            end = f"raises an error in rank {rank}"
        case AtTimeout.ENDS:
            end = f"ends the process of rank {rank}"
        case AtTimeout.ABORTS:
            end = f"aborts the operation of rank {rank}, not its process,"
        case AtTimeout.NOTHING | AtTimeout.UNKNOWN:
            return f"{backend} does not end this wait (TORCH_NCCL_ASYNC_ERROR_HANDLING is 0)"
    timeout = span_of_time(deadline.timeout_ns / 1e9)
    left_s = (deadline.at_ns - moment_ns) / 1e9
    if left_s <= 0:
        return f"{backend}'s timeout of {timeout} has passed in rank {rank}"
    return f"{backend} {end} in {span_of_time(left_s)} (timeout {timeout})"


def span_of_time(seconds: float) -> str:
    """`45 s`, `9 min 20 s`, `30 min`, `2 h 5 min`."""
    seconds = passed(seconds)
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    size, unit, smaller, smaller_unit = (60, "min", 1, "s") if whole < 3600 else (3600, "h", 60, "min")
    rest = whole % size // smaller
    return f"{whole // size} {unit} {rest} {smaller_unit}" if rest else f"{whole // size} {unit}"
