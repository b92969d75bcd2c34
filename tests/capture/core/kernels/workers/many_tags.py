"""Messages with a tag each, among messages with one tag, where few counters are kept; then tags that come again."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.capture.core import message_counters
from otel_torchdist.native import recording
from tests.support.ranks.rank import say, start_capture

MOST = 128
AT_ONCE = 16
STEADY = 10_000_000
TIMES = 1_000
message_counters.MAX_COUNTERS = MOST  # type: ignore[misc]
message_counters.FORGOTTEN_AT_ONCE = AT_ONCE  # type: ignore[misc]
recording._MIN_FREE_COUNTERS = 64  # type: ignore[misc]
data = torch.zeros(1)


def grow(first: int) -> None:
    """Send messages whose tags grow, and every fourth time one with a tag that stays."""
    for tag in range(first, first + TIMES):
        dist.send(data, 1, tag=tag)
        if not tag % 4:
            dist.send(data, 1, tag=STEADY)
            dist.recv(data, 1, tag=STEADY)


def again() -> None:
    """Send messages with tags that came before."""
    for _ in range(3):
        for tag in (5, STEADY, TIMES - 1):
            dist.send(data, 1, tag=tag)


capture = start_capture(8192)
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
recorder = capture.current_recorder()
assert recorder is not None
places = recorder.message_counters._memory
made: list[object] = []
if isinstance(places, recording.NativeCounters):
    add_counter = places._library.add_counter
    places._library.add_counter = lambda session: made.append(session) or add_counter(session)
grow(0)
again()
grow(TIMES)
counters = recorder.message_counters
say(kept=len(counters._slots), seen=len(counters._last_counts), anew=len(counters._recounted), made=len(made))
dist.destroy_process_group()
