"""Keeps OpenTelemetry's exporters from drawing on the random numbers of the training.

The OTLP exporters take the jitter of their retries from the module `random`. Its state belongs to the training script,
which has seeded it: one draw more, at a time that nobody controls, and two runs differ.
"""

from __future__ import annotations

import random
import sys
from typing import Final

_PREFIX: Final = "opentelemetry.exporter."


def give_exporters_private_random() -> None:
    """Let every exporter module of OpenTelemetry that is loaded draw from a generator of its own."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PREFIX) and getattr(module, "random", None) is random:
            vars(module)["random"] = random.Random()
