"""The children that a rank waits for, in words: `DataLoader worker 1 (pid 81), which has been in read() of …`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from otel_torchdist.model.occupations import ChildWait
from otel_torchdist.units import seconds

_PLURALS: Final = {
    "DataLoader worker": "DataLoader workers",
    "child process": "child processes",
    "command": "commands",
}
_MAX_PIDS: Final = 4


def describe_child(child: ChildWait, for_s: float) -> str:
    """Describe what a child, or several that do the same, has been doing for some seconds."""
    pids = (child.pid, *child.others)
    if len(pids) == 1:
        has_been = f"which has been {child.doing} for {seconds(for_s)}"
        return f"{child.name} (pid {child.pid}), {has_been}{_held(child, 'it was')}"
    names = _PLURALS.get(child.name, child.name)
    shown = ", ".join(map(str, pids[:_MAX_PIDS])) + (", …" if len(pids) > _MAX_PIDS else "")
    held = _held(child, "they were")
    return f"its {len(pids)} {names} (pids {shown}), which have been {child.doing} for {seconds(for_s)}{held}"


def _held(child: ChildWait, they_were: str) -> str:
    """That a lock was inherited, and where the thread is that may have held it."""
    if not (child.is_locked and child.is_forked):
        return ""
    frame = child.holder
    by = f", by its thread in {frame.function} at {PurePath(frame.file).name}:{frame.line}" if frame is not None else ""
    return f", which was held when {they_were} forked, as it seems{by}"
