"""The groups of a script: those of the job that matter, with the members that have a rank in the script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, GroupName
from otel_torchdist.reproducer.model import DEFAULT_GROUP, ScriptGroup
from otel_torchdist.reproducer.planning.cast import Cast

MOST_DIGITS: Final = 9


def groups_for(views: Iterable[GroupView], cast: Cast, world_size: int) -> Mapping[str, ScriptGroup]:
    """By key of the job's group, that of the script, in the order in which they are created.

    Args:
        views: The groups that matter.
        cast: Which ranks have a rank in the script.
        world_size: Ranks of the job; 0 if that is not known.
    """
    found: dict[str, ScriptGroup] = {}
    for view in sorted({view.key: view for view in views}.values(), key=_created):
        members = tuple(place for place, rank in enumerate(cast.kept) if rank in view.members)
        number = (
            DEFAULT_GROUP if _is_default(view.name, world_size) else 1 + sum(one.number > 0 for one in found.values())
        )
        found[view.key] = ScriptGroup(number, members, view.label)
    return found


def whole(cast: Cast) -> ScriptGroup:
    """The default group."""
    return ScriptGroup(DEFAULT_GROUP, tuple(range(len(cast.kept))))


def number_of(view: GroupView) -> int | None:
    """The number that torch has named a group by, in the order of their creation; None where names are hashes."""
    name = view.name.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) < MOST_DIGITS else None


def _created(view: GroupView) -> tuple[int, int, str, str]:
    number = number_of(view)
    return 10**MOST_DIGITS if number is None else number, view.name.nth, view.label, view.key


def _is_default(name: GroupName, world_size: int) -> bool:
    """Whether it is the default group: no other with all ranks was created before it."""
    if name.description == DEFAULT_DESCRIPTION:
        return True
    return name.nth == 0 and world_size > 0 and len(name.ranks) == world_size and not name.description
