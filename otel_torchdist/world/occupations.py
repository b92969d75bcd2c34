"""What threads of a rank are in that may wait for operations without any record of it: in C++, or through a device."""

from __future__ import annotations

from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.model.occupations import Engagement, Occupation
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus


def occupations_of(tape: TapeReader, status: TapeStatus) -> tuple[Occupation, ...]:
    """What the threads of a rank are in; `status` is that of its tape."""
    found = [
        Occupation(Engagement.OPTIMIZER_STEP, one.thread, one.entered_ns)
        for one in tape.open_activities()
        if one.kind is ActivityKind.OPTIMIZER_STEP
    ]
    if status.backward_since_ns:
        found.append(Occupation(Engagement.BACKWARD, status.backward_thread, status.backward_since_ns))
    if status.future_since_ns:
        found.append(Occupation(Engagement.FUTURE, status.future_thread, status.future_since_ns))
    return tuple(found)
