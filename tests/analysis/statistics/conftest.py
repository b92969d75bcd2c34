"""Fixtures of the tests of statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.statistics.histories import Ranks


@pytest.fixture
def ranks_of(memory: Path) -> Iterator[Callable[..., Ranks]]:
    """Makes ranks with fake tapes; see `Ranks`."""
    made: list[Ranks] = []

    def make(*arguments: int, **options: Any) -> Ranks:
        made.append(Ranks(memory, *arguments, **options))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()
