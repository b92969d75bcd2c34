"""Which things belong together, if some pairs of them do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_Item = TypeVar("_Item", bound=Hashable)


class Partition(Generic[_Item]):
    """Items in classes, which grow as items are joined."""

    def __init__(self, items: Iterable[_Item] = ()) -> None:
        """Start with each item in a class of its own."""
        self._parent: dict[_Item, _Item] = {item: item for item in items}

    def join(self, one: _Item, other: _Item) -> None:
        """Make one class of those of two items, which are added if they are new."""
        self._parent[self._root(one)] = self._root(other)

    def classes(self) -> list[list[_Item]]:
        """The classes, and the items of each, in the order in which items were added."""
        found: dict[_Item, list[_Item]] = {}
        for item in self._parent:
            found.setdefault(self._root(item), []).append(item)
        return list(found.values())

    def _root(self, item: _Item) -> _Item:
        parent = self._parent
        parent.setdefault(item, item)
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item
