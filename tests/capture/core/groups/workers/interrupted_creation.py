"""A program that is interrupted at each line of ours that runs when it creates a group, one line after the other.

A tracer raises there. Like a signal handler it gets the interrupted frame; unlike one it comes at the right moment.
Argument: what is created, `new_group` or `init_process_group`, or `launch`: the default group, from the address on.
"""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist import guard
from otel_torchdist.capture.core.groups import creation, launch, rendezvous
from tests.support.ranks.rank import own_tape, say, start_capture

HOOKS = {creation.__file__, launch.__file__}
TRACED = {*HOOKS, rendezvous.__file__, guard.__file__, contextlib.__file__}
MOST = 500


class Deadline(Exception):
    """The exception that the program raises."""


class Interruption:
    """Raises at one line while groups are created; counts the lines of the creation hooks and of what they call."""

    def __init__(self, line: int) -> None:
        self.left = line

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """Trace a frame, as a function for `sys.settrace`."""
        del arg
        if frame.f_code.co_filename not in TRACED or not within_creation(frame):
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                raise Deadline
        return self.trace


def within_creation(frame: FrameType | None) -> bool:
    """Whether a frame is one of the creation hooks, or runs for one."""
    while frame is not None and frame.f_code.co_filename in TRACED:
        if frame.f_code.co_filename in HOOKS:
            return True
        frame = frame.f_back
    return False


def new_group() -> None:
    """Create a group beside the default one."""
    dist.new_group([0])


def init_process_group() -> None:
    """Create the default group."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())


def launch_world() -> None:
    """Create the default group at an address."""
    dist.init_process_group("gloo", rank=0, world_size=1, init_method="tcp://127.0.0.1:0")


def interrupted_at(line: int, create: Any) -> bool:
    """Create a group; returns whether the interruption came."""
    interruption = Interruption(line)
    sys.settrace(interruption.trace)
    try:
        create()
    except Deadline:
        return True
    finally:
        sys.settrace(None)
    if not interruption.left:
        swallowed.append(line)
    return not interruption.left


capture = start_capture(64)
create = {"new_group": new_group, "init_process_group": init_process_group, "launch": launch_world}[sys.argv[1]]
swallowed: list[int] = []
left_open: dict[int, int] = {}
if create is new_group:
    init_process_group()
lines = 0
while lines < MOST and interrupted_at(lines + 1, create):
    lines += 1
    if capture.current_recorder() is not None:
        capture._beat()  # as once a second; torch's own lines may be interrupted too
        reader = own_tape(capture)
        reader.poll()
        if reader.open_operations():
            left_open[lines] = len(reader.open_operations())
    if create is not new_group and dist.is_initialized():
        dist.destroy_process_group()
say(lines=lines, left_open=left_open, swallowed=swallowed, is_there=dist.is_initialized())
