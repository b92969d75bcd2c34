"""Directories that take long to look into: each look at one comes at the expense of every other job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SLOW_S: Final = 0.5
"""For one directory. A full one takes some hundredths of a second."""
LOOKS: Final = 3
"""So many slow ones in a row: any may happen to fall together with a suspension of this process."""


class SlowPlaces:
    """Counts slow looks."""

    def __init__(self) -> None:
        """Nothing was slow yet."""
        self._slow: Counter[Path] = Counter()

    def found_slow(self, took_s: Mapping[Path, float]) -> dict[Path, float]:
        """Which of the directories that were looked into have now been slow too often, and how long the look took."""
        self._slow = Counter({path: self._slow[path] + 1 for path, seconds in took_s.items() if seconds >= SLOW_S})
        return {path: took_s[path] for path, looks in self._slow.items() if looks >= LOOKS}
