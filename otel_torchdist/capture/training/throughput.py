"""What `mark_step` is given: samples, tokens and floating-point operations of a step, counted and never guessed."""

from __future__ import annotations

import logging
import math
from numbers import Real
from typing import TYPE_CHECKING, Final

from otel_torchdist.tape.figures import FigureWord

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter

_logger = logging.getLogger("otel_torchdist")
_WORDS: Final = {"samples": FigureWord.SAMPLES, "tokens": FigureWord.TOKENS}
_warned_of: Final[set[str]] = set()


def count_work(tape: TapeWriter, samples: float | None, tokens: float | None, flops: float | None) -> None:
    """Add what a step has done to the tape; a value that is no number of things is left out, with one warning."""
    for name, amount in (("samples", samples), ("tokens", tokens)):
        if amount is not None and _is_amount(name, amount):
            tape.add_to(_WORDS[name], round(amount))
    if flops is not None and _is_amount("flops", flops):
        tape.add_flops(float(flops))


def _is_amount(name: str, amount: object) -> bool:
    # No tensor, not even one with a single number: to read one from a device waits for the device.
    if isinstance(amount, Real) and 0 <= float(amount) < math.inf:
        return True
    if name not in _warned_of:
        _warned_of.add(name)
        _logger.warning("mark_step(%s=%r): not a finite number, at least 0: ignored", name, amount)
    return False
