"""Label values of metrics: few, short and always valid, whatever a job calls its groups."""

from __future__ import annotations

from typing import Final, TypeVar

from otel_torchdist.semconv import OTHER

MAX_GROUPS: Final = 256
MAX_OPERATIONS: Final = 32
MAX_PAIRS: Final = 512
MAX_SIZED: Final = 768
MAX_VALUE: Final = 120

_Value = TypeVar("_Value", str, tuple[str, str, str])


def label_value(text: str) -> str:
    """Text as a label value: valid UTF-8 (a lone surrogate would fail the whole scrape) and not long."""
    return text.encode("utf-8", "replace").decode()[:MAX_VALUE]


class SeriesLabels:
    """Decides which groups and operations of a job get series of their own: the first ones that a node meets.

    A decision never changes, or a series would change its identity. Used by the reader's thread only.
    """

    def __init__(self) -> None:
        self._groups: set[str] = set()
        self._operations: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        self._sized: set[tuple[str, str, str]] = set()

    def group(self, key: str) -> str:
        """The group's own label, or `other` for those beyond `MAX_GROUPS`."""
        return _admit(key, self._groups, MAX_GROUPS)

    def pair(self, group: str, operation: str) -> tuple[str, str]:
        """Labels of a group (as `group` gave it) and one of its operations.

        Operations beyond `MAX_OPERATIONS` are `other`; pairs beyond `MAX_PAIRS` are counted under group `other`.
        """
        pair = group, _admit(label_value(operation), self._operations, MAX_OPERATIONS)
        if group == OTHER or pair in self._pairs:
            return pair
        if len(self._pairs) == MAX_PAIRS:
            return OTHER, pair[1]
        self._pairs.add(pair)
        return pair

    def size(self, pair: tuple[str, str], size: str) -> str:
        """The class of message sizes for operations of a pair, `other` for those beyond `MAX_SIZED` label sets."""
        return size if _admit_one((*pair, size), self._sized, MAX_SIZED) else OTHER


def _admit(value: str, admitted: set[str], most: int) -> str:
    return value if _admit_one(value, admitted, most) else OTHER


def _admit_one(value: _Value, admitted: set[_Value], most: int) -> bool:
    if value in admitted:
        return True
    if len(admitted) == most:
        return False
    admitted.add(value)
    return True
