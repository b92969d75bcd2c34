"""Which rows of a table of faults are tested by `make test`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest
from _pytest.mark import ParameterSet


class _Titled(Protocol):
    @property
    def title(self) -> str: ...


def params_of(rows: Sequence[_Titled], variants: Sequence[_Titled]) -> list[ParameterSet]:
    """Return parameters with the rows' titles; variants are left to `make test-all`."""
    first = [pytest.param(row, id=row.title) for row in rows]
    return first + [pytest.param(row, id=row.title, marks=pytest.mark.thorough) for row in variants]
