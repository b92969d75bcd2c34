"""Answers what others ask of this rank, once a second: its stacks, a profile, to end itself."""

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
    """Takes one profile at a time."""

    def __init__(self) -> None:
        """Nothing is sampled until it is requested."""
        self._sampling: Sampling | None = None

    def start_if_requested(self, tape: TapeWriter) -> None:
        """Start to sample if a reader of the tape has asked for it; called once a second."""
        request = tape.pending_profile()
        if request is None or (self._sampling is not None and self._sampling.is_for(request)):
            return
        from otel_torchdist.capture.core.requests.sampling import Sampling

        self.stop()
        self._sampling = Sampling(tape, request)

    def stop(self) -> None:
        """End a profile early, because the tape ends; what was sampled is written."""
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            sampling.stop()

    def forget(self) -> None:
        """Forget a profile in a forked child, which does not have the thread."""
        self._sampling = None


class RequestAnswers(SessionPart):
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
