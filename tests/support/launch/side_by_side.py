"""Runs jobs side by side, since each waits for most of its time, and hands each test the end of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

import pytest
from _pytest.compat import NOTSET
from _pytest.mark import ParameterSet

AT_ONCE: Final = 4
"""More would compete for two cores while they start."""


class Titled(Protocol):
    """A row of a table of faults."""

    @property
    def title(self) -> str:
        """Its name among all rows."""
        ...


RowT = TypeVar("RowT", bound=Titled)
T = TypeVar("T")


def params_of(rows: Sequence[Titled], variants: Sequence[Titled] = ()) -> list[ParameterSet]:
    """Return parameters with the rows' titles; variants are left to `make test-all`."""
    first = [pytest.param(row, id=row.title) for row in rows]
    return first + [pytest.param(row, id=row.title, marks=pytest.mark.thorough) for row in variants]


def selected(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Return the values of a parameter of the module's tests that pytest is going to run, in their order."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    params = [test.callspec.params for test in tests if hasattr(test, "callspec")]
    # A parameter without values has one of pytest's own, with which the test is skipped.
    return [one[parameter] for one in params if one.get(parameter, NOTSET) is not NOTSET]


@contextlib.contextmanager
def side_by_side(
    run: Callable[[RowT], T], rows: Sequence[RowT], at_once: int = AT_ONCE
) -> Iterator[Mapping[str, Future[T]]]:
    """Run each row once, a few at a time and in their order; yields their results by title."""
    pool = ThreadPoolExecutor(at_once)
    try:
        yield {title: pool.submit(run, row) for title, row in {row.title: row for row in rows}.items()}
    finally:
        pool.shutdown(cancel_futures=True)
