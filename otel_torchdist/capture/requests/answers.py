"""Answers what others ask of this rank, once a second: its stacks, a profile, to end itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from otel_torchdist import guard
from otel_torchdist.capture.part import Part
from otel_torchdist.capture.requests.abort import abort_if_requested
from otel_torchdist.capture.requests.profile import Profiler
from otel_torchdist.capture.requests.stacks import (
    answer_stack_request,
    offer_stacks,
    renew_offer,
    still_offers_stacks,
    withdraw_offer,
    write_no_stacks,
)
from otel_torchdist.job.requests.abort import FAILURE

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder


class RequestAnswers(Part):
    """Answers requests while there is a tape."""

    def __init__(self) -> None:
        self._profiler = Profiler()

    def begins(self, recorder: Recorder) -> None:
        """Offer stacks by a signal, where native code holds the GIL."""
        offer_stacks(recorder.tape.path)

    def beat(self, recorder: Recorder) -> None:
        """Answer what has been requested since the last call."""
        if not still_offers_stacks():
            withdraw_offer(recorder.tape.path)
        renew_offer(recorder.tape.path)
        with contextlib.suppress(OSError):  # no space, or the directory is gone: the agent reports that once
            answer_stack_request(recorder.tape)
        self._profiler.start_if_requested(recorder.tape)
        abort_if_requested(recorder.tape.path, lambda: recorder.fail(FAILURE))

    def ends(self, recorder: Recorder) -> None:
        """End a profile that is being taken, and withdraw the offer: the tape ends."""
        with guard.guarded("profile"):
            self._profiler.stop()
        withdraw_offer(recorder.tape.path)

    def forget_in_child(self) -> None:
        """Forget the parent's profile, and never write to its file of stacks."""
        self._profiler.forget()
        write_no_stacks()
