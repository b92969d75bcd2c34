"""Stops recording in a running process while a file switches it off, and begins again once the file is gone."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from otel_torchdist.capture.core.recorder import local_rank

if TYPE_CHECKING:
    from otel_torchdist.capture.core.run.recording import RunRecording
    from otel_torchdist.capture.core.run.runs import Runs
    from otel_torchdist.native.library import Library
    from otel_torchdist.node.off_switch import OffSwitch

_logger = logging.getLogger("otel_torchdist")


class Pause:
    """The pause of a session. Hooks and kernels stay: removing them while other threads call them is not safe.

    Attributes:
        is_on: Whether the session pauses.
    """

    def __init__(
        self, off_switch: OffSwitch | None, recording: RunRecording, runs: Runs, library: Library | None
    ) -> None:
        """Initialize without a pause.

        Args:
            off_switch: Finds the file that switches recording off; None to never look.
            recording: The tapes of this process.
            runs: The runs of this process.
            library: The native library, if it is in use.
        """
        self._off_switch = off_switch
        self._recording = recording
        self._runs = runs
        self._library = library
        self.is_on = False

    def check(self) -> None:
        """Begin or end the pause if the file has appeared or is gone. Called once a second, and before a tape."""
        if self._off_switch is None:
            return
        found = self._off_switch.found()
        if found is None:
            if self.is_on:
                self._end()
        elif self.is_on:
            self._end_tape()  # a thread of the program may have been about to begin it
        elif self._recording.begins_tapes:
            self._begin(str(found))

    def leave(self) -> None:
        """Leave the pause without recording again, because the session ends."""
        if self.is_on:
            self.is_on = False
            self._pass_on(False)

    def _begin(self, path: str) -> None:
        self.is_on = True
        self._recording.begins_tapes = False
        self._pass_on(True)
        self._end_tape()
        if local_rank() == 0:
            _logger.warning(
                "recording is switched off on this node, because %s exists: nothing is recorded until it is removed, "
                "and no verdict is given on this run. The training goes on", path,
            )  # fmt: skip

    def _end_tape(self) -> None:
        recorder = self._recording.recorder
        if recorder is not None:
            recorder.tape.switch_off(time.monotonic_ns())
            self._runs.switch_off()

    def _end(self) -> None:
        self.is_on = False
        self._runs.resume_with_next_call()
        self._recording.begins_tapes = True
        self._pass_on(False)
        if local_rank() == 0:
            _logger.warning("recording is switched on again on this node, in a new run")

    def _pass_on(self, passes_on: bool) -> None:
        if self._library is not None:
            self._library.pass_on(passes_on)
