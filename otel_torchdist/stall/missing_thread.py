"""Which thread of a rank should come to an operation: where that one is explains why the rank does not."""

from __future__ import annotations

from otel_torchdist.stall.frames import FrameOwner, owner_of
from otel_torchdist.stall.world import RankView, Site, WorldSnapshot
from otel_torchdist.tape.stacks import ThreadStack


def missing_thread(world: WorldSnapshot, rank: int, site: Site) -> ThreadStack | None:
    """The thread that entered such operations last, or the one with the name of the threads that wait there.

    None when that is not known, or when the thread has nothing to do: then another one should give it something.
    """
    view = world.ranks[rank]
    progress = view.progress.get(site.lane)
    threads = progress.threads if progress is not None else ()
    by_id = {stack.thread: stack for stack in _stacks(view)}
    known = next((by_id[thread] for thread in reversed(threads) if thread in by_id), None)
    if known is None and not threads:
        names = _names_of_waiting(world, site)
        known = next((stack for stack in _stacks(view) if stack.name in names), None)
    return known if known is not None and _is_busy(known) else None


def _stacks(view: RankView) -> tuple[ThreadStack, ...]:
    return (view.stacks.threads or ()) if view.stacks is not None else ()


def _names_of_waiting(world: WorldSnapshot, site: Site) -> set[str]:
    found: set[str] = set()
    for view in world.ranks.values():
        operation = view.at(site)
        if operation is not None:
            found |= {stack.name for stack in _stacks(view) if stack.thread == operation.record.thread}
    return found - {""}


def _is_busy(stack: ThreadStack) -> bool:
    return any(owner_of(frame.file) in (FrameOwner.USER, FrameOwner.PACKAGE) for frame in stack.frames)
