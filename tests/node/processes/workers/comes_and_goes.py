"""One rank that gets the signal while it records, in a forked child, between tapes, and when switched off."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

from otel_torchdist.capture.core.requests.stacks import SIGNAL
from tests.support.ranks.rank import TAPES, join, say, start_capture
from tests.support.waiting import until


def offers() -> list[Path]:
    """The files of tapes that offer stacks by signal from this process."""
    return sorted(Path(os.environ[TAPES]).rglob("*.fault"))


def stacks() -> int:
    """How many stacks all of them have gained since the last count."""
    global seen
    before, seen = seen, sum(file.read_text().count("Stack (most recent call first)") for file in offers())
    return seen - before


def signal_myself() -> int:
    """How many stacks a signal has brought."""
    os.kill(os.getpid(), SIGNAL)
    return stacks()


seen = 0
capture = start_capture()
join(suffix="1")
dist.all_reduce(torch.ones(1))
say(place="on a tape", offers=len(offers()), stacks=signal_myself())

child = os.fork()
if child == 0:
    os.kill(os.getpid(), SIGNAL)
    os._exit(0)
_, status = os.waitpid(child, 0)
say(place="in a child", offers=len(offers()), stacks=stacks(), code=os.waitstatus_to_exitcode(status))

dist.destroy_process_group()
seen = 0
say(place="between tapes", offers=len(offers()), stacks=signal_myself())

join(suffix="2")
dist.all_reduce(torch.ones(1))
say(place="on the next tape", offers=len(offers()), stacks=signal_myself())

capture.uninstall()
seen = 0
say(place="switched off", offers=len(offers()), stacks=signal_myself())

capture = start_capture()
say(place="switched on again", offers=len(offers()), stacks=signal_myself())
signal.signal(SIGNAL, lambda number, frame: None)
until(lambda: not offers())
say(place="taken over", offers=len(offers()), stacks=0)
dist.destroy_process_group()
