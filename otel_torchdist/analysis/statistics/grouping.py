"""The keys by which calls are grouped into rows."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.text import size_class
from otel_torchdist.sources.history.call_kinds import CallKind


class GroupingKey(Enum):
    """A key by which calls can be grouped into rows. The value is the name in `--by`."""

    OPERATION = "operation"
    GROUP = "group"
    SIZE = "size"
    SITE = "site"
    RANK = "rank"
    PHASE = "phase"


DEFAULT_KEYS: Final = (GroupingKey.OPERATION, GroupingKey.GROUP, GroupingKey.SIZE)
UNKNOWN_SIZE: Final = "unknown"
NO_SIZE: Final = "none"


class RowKey(NamedTuple):
    """The properties that all calls of a row share; None for properties that rows are not grouped by.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: The group's key; never its name, which may differ between members.
        size_class: See `units.size_class`; `none` for operations that move no data, `unknown` for unknown sizes.
        site: Function, file and line; ('', '', 0) if the call site is unknown.
        rank: Global rank.
        phase: `backward`, `outside_backward` or `unknown`.
    """

    operation: str | None
    group: str | None
    size_class: str | None
    site: tuple[str, str, int] | None
    rank: int | None
    phase: str | None = None


class Grouping:
    """Assigns calls to rows."""

    def __init__(self, keys: Iterable[GroupingKey] = DEFAULT_KEYS) -> None:
        """Group calls into rows by these keys."""
        self.keys = frozenset(keys)

    def key_of(self, kind: CallKind, size: int | None, rank: int) -> RowKey:
        """Return the row of a rank's calls of one kind; `size` is the operation's size, see `traffic.size_of`."""
        keys = self.keys
        return RowKey(
            operation=kind.operation if GroupingKey.OPERATION in keys else None,
            group=kind.group_key if GroupingKey.GROUP in keys else None,
            size_class=_class_of(size) if GroupingKey.SIZE in keys else None,
            site=_site_of(kind.site) if GroupingKey.SITE in keys else None,
            rank=rank if GroupingKey.RANK in keys else None,
            phase=kind.phase.name.lower() if GroupingKey.PHASE in keys else None,
        )


def _class_of(size: int | None) -> str:
    if size is None:
        return UNKNOWN_SIZE
    return size_class(size) if size else NO_SIZE


def _site_of(site: CallSiteName | None) -> tuple[str, str, int]:
    return ("", "", 0) if site is None else (site.function, site.file, site.line)


def keys_named(names: str | Iterable[str]) -> tuple[GroupingKey, ...]:
    """Return the keys with these names, from a list such as `operation,site` or single names.

    Raises:
        ValueError: A name is no key's, or there is none.
    """
    words = names.split(",") if isinstance(names, str) else names
    words = [stripped for word in words if (stripped := word.strip())]
    key_by_name = {key.value: key for key in GroupingKey}
    unknown = next((word for word in words if word not in key_by_name), None)
    if unknown is not None or not words:
        raise ValueError(f"{unknown or names!r}: a list of {', '.join(key_by_name)} is expected")
    return tuple(key_by_name[word] for word in words)
