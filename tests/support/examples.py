"""Property tests that try few examples in `make test`, and many in `make test-all`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def few_and_many(few: int, many: int, *strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Run a test of a property twice: with few examples, and with many as a thorough test.

    Args:
        few: Examples of `make test`.
        many: Examples of `make test-all`.
        strategies: What `given` takes.
    """

    def decorate(claim: Callable[..., None]) -> Any:
        def run(examples: int) -> None:
            settings(max_examples=examples, deadline=None)(given(*strategies)(claim))()

        run.__name__, run.__qualname__, run.__doc__ = claim.__name__, claim.__qualname__, claim.__doc__
        counts = [few, pytest.param(many, marks=pytest.mark.thorough)]
        return pytest.mark.parametrize("examples", counts)(run)

    return decorate
