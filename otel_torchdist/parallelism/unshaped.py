"""What is reduced and scattered where the shapes of tensors are not recorded, as in most traces of profilers.

What remains is when it is done: activations move in forward and in backward alike, gradients in backward or after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from otel_torchdist.model.kinds import Phase
from otel_torchdist.parallelism.calls import UNKNOWN_SHAPE, CallShape, KindCount

MIN_SHARE: Final = 0.1
"""Of the bytes, that move in forward if these are activations; statistics of a batch are far less."""


class Content(Enum):
    """What tensors hold."""

    GRADIENTS = "gradients"
    """Or parameters, where they are gathered."""
    ACTIVATIONS = "activations"
    UNKNOWN = "unknown"


class UnshapedCalls:
    """The calls of groups whose tensors have no known shape.

    Attributes:
        reduced: What `all_reduce` is called with.
        scattered: What `reduce_scatter` is called with, and so what `all_gather` gathers.
    """

    def __init__(self, kinds: Mapping[CallShape, KindCount], has_backward: bool) -> None:
        """Look when calls are made.

        Args:
            kinds: All calls of the groups.
            has_backward: Whether any rank is known to have called something in a backward pass, in any group.
        """
        self.reduced: Final = _content(kinds, "all_reduce", has_backward)
        self.scattered: Final = _content(kinds, "reduce_scatter", has_backward)


def _content(kinds: Mapping[CallShape, KindCount], collective: str, has_backward: bool) -> Content:
    sent = dict.fromkeys(Phase, 0.0)
    for kind, count in kinds.items():
        if (
            kind.collective == collective
            and kind.dimensions == UNKNOWN_SHAPE
            and not (kind.is_small or kind.is_integer)
        ):
            sent[kind.phase] += count.sent
    inside, outside = sent[Phase.BACKWARD], sent[Phase.OUTSIDE_BACKWARD]
    if not inside and not outside:
        return Content.UNKNOWN
    if inside and outside >= MIN_SHARE * (inside + outside):
        return Content.ACTIVATIONS
    # Without any backward pass it is not training: there are no gradients.
    return Content.GRADIENTS if inside or has_backward else Content.UNKNOWN
