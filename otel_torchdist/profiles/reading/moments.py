"""In which step a moment of a trace lies, and whether a backward pass was running on its thread."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from otel_torchdist.profiles.reading.events import Interval, TraceEvents


class StepMoments:
    """Looks moments up."""

    def __init__(self, events: TraceEvents) -> None:
        """Sort the steps and the backward passes of a trace."""
        self.steps: Final = tuple(sorted(events.steps.values(), key=lambda step: (step.begun_ns, step.number)))
        self._begins = [step.begun_ns for step in self.steps]
        self._backward = _outermost(events.backward)
        # Autograd has threads of its own for devices; on the main thread it runs only what is on the processor.
        self._of_autograd = {*events.backward} - events.step_threads - {events.process}
        self._is_known = events.has_operators

    def step_at(self, moment_ns: int) -> int:
        """Return the number of the step in which a moment lies; 0 for none."""
        place = bisect_right(self._begins, moment_ns) - 1
        if place < 0:
            return 0
        step = self.steps[place]
        is_last = place == len(self.steps) - 1
        return 0 if is_last and moment_ns > step.ended_ns else step.number

    def in_backward(self, thread: int, moment_ns: int) -> bool | None:
        """Return whether a thread was in a backward pass; None if the trace does not show what threads did."""
        if not self._is_known:
            return None
        if thread in self._of_autograd:
            return True
        begins, ends = self._backward.get(thread, ((), ()))
        place = bisect_right(begins, moment_ns) - 1
        return place >= 0 and moment_ns <= ends[place]


def _outermost(found: Mapping[int, list[Interval]]) -> dict[int, tuple[Sequence[int], Sequence[int]]]:
    """By thread, begins and ends of the intervals that are in no other one, ascending."""
    result: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
    for thread, intervals in found.items():
        begins: list[int] = []
        ends: list[int] = []
        for begun_ns, ended_ns in sorted(intervals):
            if ends and begun_ns <= ends[-1]:
                ends[-1] = max(ends[-1], ended_ns)
            else:
                begins.append(begun_ns)
                ends.append(ended_ns)
        result[thread] = (begins, ends)
    return result
