"""How groups are called, so that no two are called the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from otel_torchdist.model.calls import GroupView
from otel_torchdist.naming import compress_ranks

_LONGEST = 24


def labels_of(ranks: Iterable[Mapping[str, GroupView]]) -> Mapping[str, str]:
    """By key, what to call each group: its name, with its ranks where several have that name.

    Args:
        ranks: The groups of each rank by their keys, ranks ascending; members may have different names for a group,
            and that of the first one is taken.
    """
    groups: dict[str, GroupView] = {}
    for own in ranks:
        groups |= {key: view for key, view in own.items() if key not in groups}
    names = Counter(view.label for view in groups.values())
    with_ranks = {key: _with_ranks(view) if names[view.label] > 1 else view.label for key, view in groups.items()}
    again = Counter(with_ranks.values())
    return {key: f"{label} {key}" if again[label] > 1 else label for key, label in with_ranks.items()}


def _with_ranks(view: GroupView) -> str:
    return f"{view.label} ({compress_ranks(view.members, _LONGEST)})"
