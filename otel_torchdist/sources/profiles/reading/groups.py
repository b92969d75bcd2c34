"""Groups as traces describe them: in their head, in a node of their own, or beside each call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from otel_torchdist.model.naming import readable
from otel_torchdist.sources.profiles.profile import ProfiledGroup
from otel_torchdist.sources.profiles.reading.document import decoded
from otel_torchdist.sources.profiles.reading.lists import numbers_in
from otel_torchdist.tape.layout import MAX_RANKS

MAX_NAME: Final = 256
MAX_GROUPS: Final = 65_536
MAX_MEMBERS: Final = 1 << 17


class _Configured(msgspec.Struct, gc=False):
    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    pg_size: int = 0
    group_size: int = 0
    ranks: list[int] | str = ""
    backend_id: int | str = ""
    uid: int | str = ""


class DistributedInfo(msgspec.Struct, gc=False):
    """What a trace says of its rank and its groups; -1 and 0 for what it does not say."""

    rank: int = -1
    world_size: int = 0
    pg_config: list[msgspec.Raw] | dict[str, msgspec.Raw] | None = None


_CONFIGURED: Final = msgspec.json.Decoder(_Configured, strict=False)


def distributed_info(part: msgspec.Raw) -> DistributedInfo:
    """Decode that part of a trace; what is no good in it counts as absent."""
    found = decoded(part, DistributedInfo, None)
    if found is None:  # one bad field must not take the others with it
        loose = decoded(part, dict[str, Any], {})
        found = DistributedInfo(_number(loose.get("rank"), -1), _number(loose.get("world_size"), 0))
    if not 0 <= found.rank < MAX_RANKS:
        found.rank = -1
    if not 0 <= found.world_size <= MAX_RANKS:
        found.world_size = 0
    return found


def _number(value: Any, otherwise: int) -> int:
    return value if type(value) is int else otherwise


def configured_groups(parts: list[msgspec.Raw] | dict[str, msgspec.Raw] | None) -> list[ProfiledGroup]:
    """Decode `pg_config`; entries that are no good are left out."""
    found: list[ProfiledGroup] = []
    for group in _configured(parts):
        ranks = listed(group.ranks) if isinstance(group.ranks, str) else members_of(group.ranks)
        size = group.pg_size or group.group_size or len(ranks)
        found.append(group_of(group.pg_name, group.pg_desc, group.backend_config, size, ranks))
    return found


def names_by_id(parts: list[msgspec.Raw]) -> dict[str, str]:
    """Return the names of groups by the numbers that stood for them in calls until 2023."""
    ids = ((str(group.uid or group.backend_id), group.pg_name) for group in _configured(parts))
    return {number: name for number, name in ids if number}


def _configured(parts: list[msgspec.Raw] | dict[str, msgspec.Raw] | None) -> Iterator[_Configured]:
    entries = parts.values() if isinstance(parts, dict) else parts or ()
    for part in list(entries)[:MAX_GROUPS]:
        with contextlib.suppress(msgspec.DecodeError, RecursionError, ValueError):
            yield _CONFIGURED.decode(part)


@lru_cache(maxsize=4_096)
def described(name: str, description: str, size: int, ranks: str, start: int, stride: int) -> ProfiledGroup:
    """The group that is described beside a call.

    Args:
        name: torch's name.
        description: What it is for, or ''.
        size: How many ranks it has.
        ranks: Their list, which may be cut, or ''.
        start: The first of them; -1 if that is not recorded.
        stride: How far apart they are; -1 if that differs, or is not recorded.
    """
    found = listed(ranks)
    if len(found) != size and start >= 0 and stride > 0 and 0 < size <= MAX_MEMBERS:
        found = members_of(range(start, start + size * stride, stride))
    return group_of(name, description, "", size, found)


def group_of(name: str, description: str, backend: str, size: int, ranks: tuple[int, ...]) -> ProfiledGroup:
    """A group; the ranks count only if they are as many as it has."""
    shown = (readable(text, MAX_NAME) for text in (name, description, backend))
    size = size if 0 <= size <= MAX_RANKS else 0
    return ProfiledGroup(*shown, size=size, ranks=ranks if len(ranks) == size else ())


def members_of(ranks: Iterable[int]) -> tuple[int, ...]:
    """Ranks in ascending order; none if one of them cannot be a rank, or is there twice."""
    found = list(ranks)
    if len(found) > MAX_MEMBERS or not found or min(found) < 0 or max(found) >= MAX_RANKS:
        return ()
    return tuple(sorted(found)) if len({*found}) == len(found) else ()


@lru_cache(maxsize=1_024)
def listed(text: str) -> tuple[int, ...]:
    """The ranks in a text such as `[0, 1]`; none if it is cut, or anything else."""
    return members_of(numbers_in(text))
