"""Waits for the first checkpoint of the program. The recording code is imported only then, to save memory."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_torchdist import guard
from otel_torchdist.capture.core.part import RecordingPart
from otel_torchdist.capture.core.torch_api import CHECKPOINT_LOGGER
from otel_torchdist.capture.upstream import training

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.capture.parts.checkpoints.distributed import DistributedCheckpoints
    from otel_torchdist.capture.parts.checkpoints.files import CheckpointFiles
    from otel_torchdist.capture.parts.checkpoints.open_activities import OpenActivities

_UTILS: Final = training.DIST_WRAPPER.module
OPENS: Final = (training.OPEN_WRITER, training.OPEN_READER)
"""Globals of `torch.serialization` through which `torch.save` and `torch.load` open a file."""


class Checkpoints(RecordingPart):
    """The session part that records checkpoints."""

    def __init__(self, patches: Patches) -> None:
        """Initialize without hooks. `patches` restores the functions that are patched at the first checkpoint."""
        super().__init__()
        self._patches = patches
        # At most one entry. A dict, because `setdefault` is atomic: two threads or a signal handler may be first.
        self._recordings: dict[None, CheckpointRecording] = {}
        self._messages = _Messages(self._begin_if_recorded)

    @property
    def _recording(self) -> CheckpointRecording | None:
        return self._recordings.get(None)

    def begins(self, recorder: Recorder) -> None:
        """Start recording to a new tape."""
        super().begins(recorder)
        if self._recording is not None:
            self._recording.activities.recorder = recorder

    def hook(self, patches: Patches) -> None:
        """Patch the functions that open checkpoint files, and listen to torch's log of checkpoints."""
        logging.getLogger(CHECKPOINT_LOGGER).addHandler(self._messages)
        for symbol in OPENS:
            patches.replace(torch.serialization, symbol, functools.partial(self._make_open, symbol.name))
        if _UTILS in sys.modules:
            self.begin()

    def unhook(self) -> None:
        """Stop recording. `patches` restores the patched functions."""
        logging.getLogger(CHECKPOINT_LOGGER).removeHandler(self._messages)
        if self._recording is not None:
            self._recording.distributed.unhook()

    def beat(self, recorder: Recorder) -> None:
        """Record the ends of activities that raised."""
        if self._recording is None and _UTILS in sys.modules:
            self.begin()
        if self._recording is not None:
            self._recording.activities.end_abandoned()
            self._recording.distributed.check()

    def ends(self, recorder: Recorder) -> None:
        """Record the ends of activities that raised, and drop open ones."""
        super().ends(recorder)
        self._forget_all(ends_abandoned=True)

    def forget_in_child(self) -> None:
        """Drop the parent's activities."""
        super().forget_in_child()
        self._forget_all(ends_abandoned=False)

    def _forget_all(self, ends_abandoned: bool) -> None:
        if self._recording is not None:
            self._recording.activities.recorder = None
            self._recording.activities.forget_all(ends_abandoned=ends_abandoned)

    def begin(self) -> CheckpointRecording:
        """Import the recording code, and start recording."""
        recording = self._recording
        if recording is not None:
            return recording
        new = CheckpointRecording(self._patches, self.recorder)
        recording = self._recordings.setdefault(None, new)
        if recording is new:
            recording.distributed.hook()
        return recording

    def _begin_if_recorded(self) -> None:
        if self.recorder is not None:
            self.begin()

    def _make_open(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        wrappers: list[Callable[..., Any]] = []

        def opened(*args: Any, **kwargs: Any) -> Any:
            if not wrappers and self.recorder is not None:
                with guard.guarded("checkpoint file"):
                    wrappers.append(self.begin().files.wrap_open(name, original))
            return (wrappers[0] if wrappers else original)(*args, **kwargs)

        return opened


class _Messages(logging.Handler):
    """Log handler that starts recording at torch's first message about a checkpoint."""

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__(logging.DEBUG)
        self._begin = begin

    def emit(self, record: logging.LogRecord) -> None:
        """Start recording, including this message: a logger also calls handlers that are added meanwhile."""
        try:
            self._begin()
        except Exception as error:
            guard.report("checkpoint", error)


class CheckpointRecording:
    """The recorders of checkpoints.

    Attributes:
        activities: Open checkpoint activities.
        distributed: Recorder of `torch.distributed.checkpoint`.
        files: Recorder of `torch.save` and `torch.load`.
    """

    def __init__(self, patches: Patches, recorder: Recorder | None) -> None:
        """Import and create the recorders, without hooks."""
        from otel_torchdist.capture.parts.checkpoints.distributed import DistributedCheckpoints
        from otel_torchdist.capture.parts.checkpoints.files import CheckpointFiles
        from otel_torchdist.capture.parts.checkpoints.open_activities import OpenActivities

        self.activities: OpenActivities = OpenActivities()
        self.activities.recorder = recorder
        self.distributed: DistributedCheckpoints = DistributedCheckpoints(self.activities, patches)
        self.files: CheckpointFiles = CheckpointFiles(self.activities)
