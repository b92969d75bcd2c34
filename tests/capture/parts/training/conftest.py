"""Records the parts of this process's steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.parts.training.rank_here import Rank


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    """Parts of this process's steps are recorded."""
    with contextlib.closing(Rank(memory)) as rank:
        yield rank
