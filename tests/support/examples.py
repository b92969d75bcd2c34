"""Property tests that try few examples in `make test`, and many in `make test-all`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings


def few_and_many(few: int, many: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test of a property twice: with few examples, and with many as a thorough test.

    Args:
        few: Examples of `make test`.
        many: Examples of `make test-all`.
    """

    def decorate(claim: Callable[..., None]) -> Callable[..., None]:
        def run(examples: int) -> Any:
            return settings(max_examples=examples, deadline=None)(claim)()

        run.__name__, run.__doc__, run.__module__ = claim.__name__, claim.__doc__, claim.__module__
        counts = [few, pytest.param(many, marks=pytest.mark.thorough)]
        return pytest.mark.parametrize("examples", counts)(run)

    return decorate
