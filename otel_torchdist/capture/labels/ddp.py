"""The buckets in which DistributedDataParallel reduces gradients.

C++ issues them, in order, and says no number. So the calls of a backward pass are counted, and a number is recorded
only where the size of the message is that of the bucket whose turn it is: with a hook that compresses, or once a call
of a bucket's size was not that bucket, there is none until the next forward. DDP rebuilds its buckets after the first
backward, and shows their new sizes one forward later.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch.compiler import is_dynamo_compiling
from torch.distributed import ProcessGroup
from torch.nn.parallel import distributed as ddp

from otel_torchdist import guard
from otel_torchdist.capture.c10d.buckets import Buckets

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.call import GroupState
    from otel_torchdist.capture.torch_api import Patches, Replaced

MAX_READS: Final = 16
"""How often the sizes are read, 6 µs each, of a model whose buckets are never rebuilt."""
_SIZES: Final = ("rebuilt_bucket_sizes", "bucket_sizes")
_ASSIGNED: Final = "rebuilt_per_bucket_param_indices"


class Replicated:
    """Learns the buckets of models as they begin their forward."""

    def __init__(self, meet: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Learn the buckets of groups, which `meet` finds."""
        self._meet = meet
        self._reads: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def replaced(self) -> Replaced:
        """What is replaced."""
        model = ddp.DistributedDataParallel
        return [(model, "_pre_forward"), (model, "_get_ddp_logging_data")]

    def hook(self, patches: Patches) -> None:
        """Replace what begins the forward of a model, and rebuilds its buckets."""
        owner, name = self.replaced()[0]
        patches.replace(owner, name, self._forward)

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def pre_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            if not is_dynamo_compiling():
                try:
                    self._begins(model)
                except Exception as error:
                    guard.report("DDP buckets", error)
            return result

        return pre_forward

    def _begins(self, model: Any) -> None:
        group = self._meet(model.process_group)
        if group is None or not model.require_backward_grad_sync:
            return
        buckets = group.buckets
        if buckets is None:
            buckets = Buckets(group.recorder, group.native)
            group.count_buckets(buckets)
        reads = self._reads.get(model, 0)
        if buckets.is_of(model) and reads >= MAX_READS:
            buckets.begin()
            return
        known: dict[str, Any] = model._get_ddp_logging_data()
        self._reads[model] = MAX_READS if known.get("has_rebuilt_buckets") else reads + 1
        text = next((str(known[name]) for name in _SIZES if known.get(name)), "")
        sizes = [int(size) for size in text.split(",") if size.strip()]
        buckets.learn(model, sizes, str(known.get(_ASSIGNED, "")), getattr(model, "_has_rebuilt_buckets", True))
