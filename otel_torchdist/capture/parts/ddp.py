"""DistributedDataParallel: numbers its gradient buckets, and reads its timers.

C++ issues the buckets in order, without numbers. So the calls of a backward pass are counted, and a call gets the next
bucket's number only if its message has the size of that bucket. With a compressing hook, or after a call out of order,
there are no numbers until the next forward. DDP rebuilds its buckets after the first backward, and reports the new
sizes one forward later. For the step in between, we compute them as DDP does, from the order of ready gradients.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from torch.compiler import is_dynamo_compiling
from torch.distributed import ProcessGroup
from torch.nn.parallel import distributed as ddp

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.buckets import Buckets
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.upstream import training

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches, PatchTargets


FIRST_STEPS: Final = 12
READ_INTERVAL: Final = 50
"""DDP's timers are read after each of the first steps, then at this interval: a read takes 20 to 40 µs."""
MAX_MODELS: Final = 64
_TIME: Final = "backward_comm_time"
_OVERLAP: Final = "backward_compute_comm_overlap_time"


class GradientSync(SessionPart):
    """Reader of DDP's timers: the time to reduce gradients, and the part of it that backward computation hides.

    DDP times its first ten iterations and every hundredth after that. For a model on a device, it uses the device's
    clock.
    """

    def __init__(self) -> None:
        self._models: list[weakref.ref[Any]] = []

    def hook(self, patches: Patches) -> None:
        """Patch the constructor of DDP. Models that were wrapped before are unknown."""
        patches.replace(ddp.DistributedDataParallel, training.DDP_INIT, self._make_initialize)

    def _make_initialize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            with guard.guarded("DDP's timers"):
                self._models = [reference for reference in self._models if reference() is not None][: MAX_MODELS - 1]
                self._models.append(weakref.ref(model))
            return result

        return initialize

    def step_ended(self, recorder: Recorder) -> None:
        """Publish the newest times, if they are due."""
        if not self._models or (recorder.step > FIRST_STEPS and recorder.step % READ_INTERVAL):
            return
        with guard.guarded("DDP's timers"):
            times = [_times_of(model) for reference in self._models if (model := reference()) is not None]
            timed = [(sync_ns, overlap_ns) for sync_ns, overlap_ns in times if sync_ns > 0]
            if timed:
                recorder.tape.set_sync(sum(sync for sync, _ in timed), sum(overlap for _, overlap in timed))


def _times_of(model: Any) -> tuple[int, int]:
    """Return reduction time and hidden part of a model's last timed iteration, in ns; 0 if unknown."""
    logger: Any = training.DDP_LOGGER.of(model)
    read = training.DDP_LOGGED_TIMES.of(logger) if logger is not None else None
    if read is None:
        return 0, 0
    values: dict[str, int] = read().ints_map
    sync_ns = max(int(values.get(_TIME, 0)), 0)
    return sync_ns, min(max(int(values.get(_OVERLAP, 0)), 0), sync_ns)


MAX_READS: Final = 16
"""Maximum number of reads of a model's bucket sizes, 6 µs each, if its buckets are never rebuilt."""
_REBUILT: Final = ("rebuilt_bucket_sizes", "rebuilt_per_bucket_param_indices")
_ORDER: Final = "prev_iteration_grad_ready_order_indices"


class DdpBuckets:
    """Reader of the buckets of DDP models, at the beginning of each forward."""

    def __init__(self, find_group: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Initialize without models. `find_group` returns the state of a group."""
        self._find_group = find_group
        self._reads: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def targets(self) -> PatchTargets:
        """Return the attribute to patch, and the attributes that are needed: DDP's method calls the logger's."""
        model, logged = ddp.DistributedDataParallel, training.DDP_LOGGED_TIMES
        return [(model, training.DDP_FORWARD), (model, training.DDP_LOGGED), (logged.holder, logged)]

    def hook(self, patches: Patches) -> None:
        """Patch the method that begins a forward, and also rebuilds buckets."""
        owner, name = self.targets()[0]
        patches.replace(owner, name, self._forward)

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def pre_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            if not is_dynamo_compiling():
                try:
                    self._forward_begins(model)
                except Exception as error:
                    guard.report("DDP buckets", error)
            return result

        return pre_forward

    def _forward_begins(self, model: Any) -> None:
        group = self._find_group(model.process_group)
        if group is None or not model.require_backward_grad_sync:
            return
        buckets = group.buckets
        if buckets is None:
            buckets = Buckets(group.recorder, group.native)
            group.count_buckets(buckets)
        reads = self._reads.get(model, 0)
        if buckets.knows(model) and reads >= MAX_READS:
            buckets.restart()
            return
        logged: dict[str, Any] = training.DDP_LOGGED.of(model)()
        self._reads[model] = MAX_READS if logged.get("has_rebuilt_buckets") else reads + 1
        is_rebuilt: bool | None = getattr(model, training.DDP_REBUILT.name, None)
        sizes, assigned = _next_buckets(model, logged, bool(is_rebuilt))
        buckets.learn(model, sizes, assigned, is_rebuilt is not False)


def _next_buckets(model: Any, logged: Mapping[str, Any], is_rebuilt: bool) -> tuple[list[int], str]:
    """Return sizes in bytes of the next buckets, and the parameters in them; empty if unknown."""
    sizes, assigned = (str(logged.get(name, "")) for name in _REBUILT)
    if sizes:
        return _numbers(sizes), assigned
    if is_rebuilt:
        return _rebuilt(model, _numbers(logged.get(_ORDER, "")))
    return _numbers(logged.get("bucket_sizes", "")), ""


def _numbers(text: object) -> list[int]:
    return [int(number) for number in str(text).split(",") if number.strip()]


def _rebuilt(model: Any, order: list[int]) -> tuple[list[int], str]:
    """Compute the buckets that DDP has rebuilt in the order in which gradients were ready.

    If this version of DDP computes them differently, the sizes do not match the messages, which then get no number.
    """
    module_parameters = getattr(model, training.DDP_PARAMETERS.name, ())
    parameters = [parameter for parameter in module_parameters if parameter.requires_grad]
    if sorted(order) != list(range(len(parameters))):  # some parameters had no gradient
        return [], ""
    first_bytes, assign = training.FIRST_BUCKET.find(), training.ASSIGN_BUCKETS.find()
    if first_bytes is None or assign is None:
        return [], ""
    cap: int = model.bucket_bytes_cap
    is_default = getattr(model, "bucket_bytes_cap_default", False)
    first: int = first_bytes if is_default else cap
    limits = list(getattr(model, "bucket_bytes_cap_list", ())) or [first, cap]
    ready = [parameters[index] for index in order]
    buckets, _ = assign(ready, limits, [False] * len(ready), order)
    sizes = [sum(parameters[index].nbytes for index in bucket) for bucket in buckets]
    return sizes, ", ".join(" ".join(map(str, bucket)) for bucket in buckets)
