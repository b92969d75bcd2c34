"""The keys by which calls are grouped into rows."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.units import size_class
from otel_torchdist.sources.history.call_kinds import CallKind


class Part(Enum):
    """A property of calls by which rows may be grouped."""

    OPERATION = "operation"
    GROUP = "group"
    SIZE = "size"
    SITE = "site"
    RANK = "rank"
    PHASE = "phase"


DEFAULT_PARTS: Final = (Part.OPERATION, Part.GROUP, Part.SIZE)
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

    def __init__(self, parts: Iterable[Part] = DEFAULT_PARTS) -> None:
        """Group rows by these properties."""
        self.parts = frozenset(parts)

    def key_of(self, kind: CallKind, size: int | None, rank: int) -> RowKey:
        """Return the row of a rank's calls of one kind; `size` is the operation's size, see `traffic.size_of`."""
        parts = self.parts
        return RowKey(
            operation=kind.operation if Part.OPERATION in parts else None,
            group=kind.group_key if Part.GROUP in parts else None,
            size_class=_class_of(size) if Part.SIZE in parts else None,
            site=_site_of(kind.site) if Part.SITE in parts else None,
            rank=rank if Part.RANK in parts else None,
            phase=kind.phase.name.lower() if Part.PHASE in parts else None,
        )


def _class_of(size: int | None) -> str:
    if size is None:
        return UNKNOWN_SIZE
    return size_class(size) if size else NO_SIZE


def _site_of(site: CallSiteName | None) -> tuple[str, str, int]:
    return ("", "", 0) if site is None else (site.function, site.file, site.line)
