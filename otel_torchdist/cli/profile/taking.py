"""Profiles a live rank: requests samples, follows the rank's operations meanwhile, and joins the two."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.operations import Operation
from otel_torchdist.node.job.requests.profile_file import NOT_RUNNING, Profile, ProfileError, read_profile
from otel_torchdist.tape.names.reader import Names
from otel_torchdist.tape.reading.reader import TapeReader

ANSWER_S: Final = 5.0
"""Time for a rank to answer a request. It polls for requests once a second, less often on a loaded machine."""
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class StackSample:
    """A stack of one thread, and the operation that it was sampled in.

    Attributes:
        thread: Name of the thread.
        stack: Innermost frame first.
        operation: `in all_reduce (default_pg)` for a thread inside a call or a wait. `all_reduce (default_pg) in
            flight` after the call returned; C++ code may have been waiting for it. '' if no operation was open.
    """

    thread: str
    stack: tuple[CallSiteName, ...]
    operation: str


@dataclass(frozen=True, slots=True)
class SampledRank:
    """A profile of a rank.

    Attributes:
        samples: Number of samples of each stack. Threads without Python frames have none.
        count: Number of sampling times.
        seconds: Duration.
        is_cut: Whether the profile ended early.
    """

    samples: Counter[StackSample]
    count: int
    seconds: float
    is_cut: bool


@dataclass(frozen=True, slots=True)
class _Interval:
    """A period in which a thread was inside a call or a wait, or had an operation in flight."""

    begun_ns: int
    ended_ns: int
    text: str


def take(tape: TapeReader, seconds: float, rate: int, meanwhile: Callable[[], None]) -> SampledRank:
    """Request a profile from a rank, and wait for it.

    Args:
        tape: The tape of the rank. No other code may read through this object.
        seconds: Duration.
        rate: Samples per second.
        meanwhile: Called several times a second.

    Raises:
        ProfileError: The rank does not answer, or its answer is no profile.
    """
    request = tape.request_profile(seconds, rate)
    if not request:
        raise ProfileError("its tape belongs to another user, or to a version of otel-torchdist without profiles")
    operations: dict[int, Operation] = {}
    deadline = time.monotonic() + seconds + ANSWER_S
    while not tape.has_answered_profile(request):
        if not tape.is_alive():
            raise ProfileError("it has ended")
        if time.monotonic() > deadline:
            raise ProfileError("it does not answer: native code may hold the GIL, or its process is stopped")
        _follow(tape, operations)
        meanwhile()
        time.sleep(POLL_S)
    _follow(tape, operations)
    return merged(read_profile(tape.path, request, tape.owner), operations.values(), tape.names)


def _follow(tape: TapeReader, operations: dict[int, Operation]) -> None:
    batch = tape.poll()
    for operation in (*batch.entered, *batch.ended, *tape.open_operations()):
        operations[operation.number] = operation


def merged(profile: Profile, operations: Iterable[Operation], names: Names) -> SampledRank:
    """Count the stacks of a profile, each with the operation of its thread at that time."""
    inside: dict[int, list[_Interval]] = {}
    in_flight: dict[int, list[_Interval]] = {}
    for operation in operations:
        inside.setdefault(operation.thread, []).extend(_inside(operation, names))
        in_flight.setdefault(operation.thread, []).extend(_in_flight(operation, names))
    samples: Counter[StackSample] = Counter()
    for thread in profile.threads:
        calls, flights = (_Intervals(intervals.get(thread.thread, [])) for intervals in (inside, in_flight))
        for at_ns, index in zip(profile.times_ns, thread.stacks, strict=False):
            if index != NOT_RUNNING:
                text = calls.at(at_ns) or flights.at(at_ns)
                samples[StackSample(thread.name, profile.stacks[index], text)] += 1
    times = profile.times_ns
    seconds = (times[-1] - times[0]) / 1e9 if times else 0.0
    return SampledRank(samples, len(times), seconds, profile.is_cut)


class _Intervals:
    """Finds the latest interval of a thread that contains a time."""

    def __init__(self, intervals: list[_Interval]) -> None:
        self._intervals = sorted(intervals, key=lambda interval: interval.begun_ns)
        self._starts_ns = [interval.begun_ns for interval in self._intervals]

    def at(self, at_ns: int) -> str:
        index = bisect_right(self._starts_ns, at_ns) - 1
        return self._intervals[index].text if index >= 0 and at_ns <= self._intervals[index].ended_ns else ""


def _inside(operation: Operation, names: Names) -> Iterator[_Interval]:
    """Yield the intervals in which its thread was inside an operation: in the call, and in a wait for it."""
    end_ns, text = _end_ns(operation), f"in {_name(operation, names)}"
    yield _Interval(operation.entered_ns, operation.returned_ns or end_ns, text)
    if operation.wait_entered_ns is not None:
        yield _Interval(operation.wait_entered_ns, operation.wait_returned_ns or end_ns, text)


def _in_flight(operation: Operation, names: Names) -> Iterator[_Interval]:
    """Yield the interval from the return of the call to the completion of the operation."""
    if operation.returned_ns is not None:
        yield _Interval(operation.returned_ns, _end_ns(operation), f"{_name(operation, names)} in flight")


def _end_ns(operation: Operation) -> int:
    return operation.completed_ns if operation.completed_ns is not None else time.monotonic_ns()


def _name(operation: Operation, names: Names) -> str:
    signature, group = names.signature(operation.signature), names.group(operation.group)
    operation_name = signature.operation if signature is not None else "operation"
    group_name = (group.description or group.name) if group is not None else ""
    return f"{operation_name} ({group_name})" if group_name else operation_name
