"""Answers requests once a second: for stacks, for a profile, and to end the process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from otel_torchdist import guard
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.requests.abort import abort_if_requested
from otel_torchdist.capture.core.requests.stacks import (
    answer_stack_request,
    offer_stacks,
    renew_offer,
    still_offers_stacks,
    withdraw_offer,
    write_no_stacks,
)
from otel_torchdist.node.job.requests.commands import FAILURE

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.requests.sampling import Sampling
    from otel_torchdist.tape.writer import TapeWriter


class Profiler:
    """Sampler of one profile at a time."""

    def __init__(self) -> None:
        """Initialize without a profile."""
        self._sampling: Sampling | None = None

    def start_if_requested(self, tape: TapeWriter) -> None:
        """Start sampling if a reader of the tape has requested it. Called once a second."""
        request = tape.pending_profile()
        if request is None or (self._sampling is not None and self._sampling.is_for(request)):
            return
        from otel_torchdist.capture.core.requests.sampling import Sampling

        self.stop()
        self._sampling = Sampling(tape, request)

    def stop(self) -> None:
        """End a profile early, because the tape ends. Its samples are written."""
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            sampling.stop()

    def forget(self) -> None:
        """Drop a profile in a forked child, which does not have the thread."""
        self._sampling = None


class RequestAnswers(SessionPart):
    """The answers to requests, while there is a tape."""

    def __init__(self) -> None:
        self._profiler = Profiler()

    def begins(self, recorder: Recorder) -> None:
        """Offer stacks by a signal, for native code that holds the GIL."""
        offer_stacks(recorder.tape.path)

    def beat(self, recorder: Recorder) -> None:
        """Answer the requests since the last call."""
        if not still_offers_stacks():
            withdraw_offer(recorder.tape.path)
        renew_offer(recorder.tape.path)
        with contextlib.suppress(OSError):  # no space, or the directory is gone: the agent warns once
            answer_stack_request(recorder.tape)
        self._profiler.start_if_requested(recorder.tape)
        abort_if_requested(recorder.tape.path, lambda: recorder.fail(FAILURE))

    def ends(self, recorder: Recorder) -> None:
        """End a running profile, and withdraw the offer of stacks."""
        with guard.guarded("profile"):
            self._profiler.stop()
        withdraw_offer(recorder.tape.path)

    def forget_in_child(self) -> None:
        """Drop the parent's profile, and stop writing to its file of stacks."""
        self._profiler.forget()
        write_no_stacks()
