"""Has the stacks of this process's threads sampled when a reader asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_torchdist.capture.requests.sampling import Sampling
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
        from otel_torchdist.capture.requests.sampling import Sampling  # most ranks are never asked

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
