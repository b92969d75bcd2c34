"""A rank whose tape the test writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tapes.fake_tape import ClockedTape
from tests.telemetry.spanned_rank import Rank


@pytest.fixture
def make_tape(tmp_path: Path) -> Iterator[Callable[..., ClockedTape]]:
    """Creates tapes and closes them afterwards."""
    tapes: list[ClockedTape] = []

    def make(**arguments: Any) -> ClockedTape:
        tapes.append(ClockedTape(tmp_path, **arguments))
        return tapes[-1]

    yield make
    for tape in tapes:
        tape.writer.close()


@pytest.fixture
def tape(make_tape: Callable[..., ClockedTape]) -> ClockedTape:
    """A tape whose run id is agreed."""
    tape = make_tape()
    tape.agree()
    return tape


@pytest.fixture
def rank(tape: ClockedTape) -> Rank:
    """Rank 2 of 4, every step sampled."""
    return Rank(tape)
