"""Reads what DDP times by itself: how long it reduces gradients, and how much of that their computation hides.

DDP times its first ten iterations and every hundredth after that, with the device's clock where the model is on one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch.nn.parallel import distributed as ddp

from otel_torchdist import guard
from otel_torchdist.capture.part import Part

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder
    from otel_torchdist.capture.torch_api import Patches

_logger = logging.getLogger("otel_torchdist")

FIRST: Final = 12
EVERY: Final = 50
"""Its times are read after each of the first steps, and then after each of so many: reading takes 20 to 40 µs."""
MAX_MODELS: Final = 64
_INITIALIZES: Final = "_ddp_init_helper"
_TIME: Final = "backward_comm_time"
_OVERLAP: Final = "backward_compute_comm_overlap_time"


class GradientSync(Part):
    """The models of this process that DDP has wrapped."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[Any]] = []

    def hook(self, patches: Patches) -> None:
        """Learn of models where they are wrapped; those that were before are not known."""
        if not hasattr(ddp.DistributedDataParallel, _INITIALIZES):
            _logger.warning("this torch has no DDP.%s: the time of gradient sync is not known", _INITIALIZES)
        patches.replace(ddp.DistributedDataParallel, _INITIALIZES, self._make_initialize)

    def _make_initialize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            with guard.guarded("DDP's timers"):
                self._models = [known for known in self._models if known() is not None][: MAX_MODELS - 1]
                self._models.append(weakref.ref(model))
            return result

        return initialize

    def step_ended(self, recorder: Recorder) -> None:
        """Publish the newest times, if it is their turn."""
        if not self._models or (recorder.step > FIRST and recorder.step % EVERY):
            return
        with guard.guarded("DDP's timers"):
            times = [_times_of(model) for reference in self._models if (model := reference()) is not None]
            timed = [(sync_ns, overlap_ns) for sync_ns, overlap_ns in times if sync_ns > 0]
            if timed:
                recorder.tape.set_sync(sum(sync for sync, _ in timed), sum(overlap for _, overlap in timed))


def _times_of(model: Any) -> tuple[int, int]:
    """Nanoseconds of the newest timed iteration of a model: the reduction, and what of it was hidden; 0 if unknown."""
    logger: Any = getattr(model, "logger", None)
    if logger is None:
        return 0, 0
    found: dict[str, int] = logger._get_ddp_logging_data().ints_map
    sync_ns = max(int(found.get(_TIME, 0)), 0)
    return sync_ns, min(max(int(found.get(_OVERLAP, 0)), 0), sync_ns)
