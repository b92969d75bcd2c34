"""Decodes groups of traces: from the head of a trace, from a separate node, or from the arguments of a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from otel_torchdist.model.text import readable
from otel_torchdist.sources.profiles.profile import ProfiledGroup
from otel_torchdist.sources.profiles.reading.document import decoded
from otel_torchdist.sources.profiles.reading.lists import numbers_in
from otel_torchdist.tape.layout import MAX_RANKS

MAX_NAME: Final = 256
MAX_GROUPS: Final = 65_536
MAX_MEMBERS: Final = 1 << 17


class _GroupConfig(msgspec.Struct, gc=False):
    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    pg_size: int = 0
    group_size: int = 0
    ranks: list[int] | str = ""
    backend_id: int | str = ""
    uid: int | str = ""


class DistributedInfo(msgspec.Struct, gc=False):
    """The `distributedInfo` of a trace. `rank` is -1 and `world_size` 0 if not stated."""

    rank: int = -1
    world_size: int = 0
    pg_config: list[msgspec.Raw] | dict[str, msgspec.Raw] | None = None


_CONFIGURED: Final = msgspec.json.Decoder(_GroupConfig, strict=False)


def distributed_info(part: msgspec.Raw) -> DistributedInfo:
    """Decode the `distributedInfo` of a trace. Invalid fields count as absent."""
    info = decoded(part, DistributedInfo, None)
    if info is None:  # keep the valid fields if another is invalid
        fields = decoded(part, dict[str, Any], {})
        info = DistributedInfo(_number(fields.get("rank"), -1), _number(fields.get("world_size"), 0))
    if not 0 <= info.rank < MAX_RANKS:
        info.rank = -1
    if not 0 <= info.world_size <= MAX_RANKS:
        info.world_size = 0
    return info


def _number(value: Any, default: int) -> int:
    return value if type(value) is int else default


def configured_groups(parts: list[msgspec.Raw] | dict[str, msgspec.Raw] | None) -> list[ProfiledGroup]:
    """Decode `pg_config`. Invalid entries are left out."""
    groups: list[ProfiledGroup] = []
    for group in _group_configs(parts):
        ranks = ranks_in(group.ranks) if isinstance(group.ranks, str) else members_of(group.ranks)
        size = group.pg_size or group.group_size or len(ranks)
        groups.append(group_of(group.pg_name, group.pg_desc, group.backend_config, size, ranks))
    return groups


def names_by_id(parts: list[msgspec.Raw]) -> dict[str, str]:
    """Return the names of groups by their ids, which calls of traces until 2023 refer to."""
    ids = ((str(group.uid or group.backend_id), group.pg_name) for group in _group_configs(parts))
    return {number: name for number, name in ids if number}


def _group_configs(parts: list[msgspec.Raw] | dict[str, msgspec.Raw] | None) -> Iterator[_GroupConfig]:
    entries = parts.values() if isinstance(parts, dict) else parts or ()
    for part in list(entries)[:MAX_GROUPS]:
        with contextlib.suppress(msgspec.DecodeError, RecursionError, ValueError):
            yield _CONFIGURED.decode(part)


@lru_cache(maxsize=4_096)
def group_from_arguments(name: str, description: str, size: int, ranks: str, start: int, stride: int) -> ProfiledGroup:
    """Return the group described in the arguments of a call.

    Args:
        name: torch's name.
        description: Its purpose, or ''.
        size: Number of its ranks.
        ranks: List of its ranks, which may be truncated, or ''.
        start: Its first rank; -1 if not recorded.
        stride: Distance between its ranks; -1 if it varies, or is not recorded.
    """
    members = ranks_in(ranks)
    if len(members) != size and start >= 0 and stride > 0 and 0 < size <= MAX_MEMBERS:
        members = members_of(range(start, start + size * stride, stride))
    return group_of(name, description, "", size, members)


def group_of(name: str, description: str, backend: str, size: int, ranks: tuple[int, ...]) -> ProfiledGroup:
    """Return a group with sanitized texts, and without ranks if their number differs from `size`."""
    texts = (readable(text, MAX_NAME) for text in (name, description, backend))
    size = size if 0 <= size <= MAX_RANKS else 0
    return ProfiledGroup(*texts, size=size, ranks=ranks if len(ranks) == size else ())


def members_of(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return ranks in ascending order; none if one is out of range or duplicated."""
    members = list(ranks)
    if len(members) > MAX_MEMBERS or not members or min(members) < 0 or max(members) >= MAX_RANKS:
        return ()
    return tuple(sorted(members)) if len({*members}) == len(members) else ()


@lru_cache(maxsize=1_024)
def ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks in a text such as `[0, 1]`; none in a truncated list or another text."""
    return members_of(numbers_in(text))
