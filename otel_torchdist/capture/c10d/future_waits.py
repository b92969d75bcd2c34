"""Shows that a thread waits for a future, as `Work.get_future` returns: of which operation it is does not show.

`torch.futures.Future` is a subclass whose `wait` calls the one that is patched here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from otel_torchdist import guard
from otel_torchdist.capture.part import RecordingPart
from otel_torchdist.capture.tracebacks import hide_frame

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder
    from otel_torchdist.capture.torch_api import Patches


class FutureWaits(RecordingPart):
    """Publishes waits for futures."""

    def hook(self, patches: Patches) -> None:
        """Follow the waits for all futures of the process."""
        patches.replace(torch._C.Future, "wait", self._make_wait)  # pyright: ignore[reportPrivateUsage]

    def _make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(future: Any) -> Any:
            recorder = None if future.done() else self.recorder
            try:
                if recorder is not None:
                    self._begins(recorder)
                return original(future)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if recorder is not None:
                    self._ends(recorder)

        return wait

    def _begins(self, recorder: Recorder) -> None:
        try:
            recorder.tape.begin_future(threading.get_native_id(), time.monotonic_ns())
        except Exception as error:
            guard.report("Future.wait", error)

    def _ends(self, recorder: Recorder) -> None:
        try:
            recorder.tape.end_future(threading.get_native_id())
        except Exception as error:
            guard.report("Future.wait", error)
