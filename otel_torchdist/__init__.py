"""OpenTelemetry for torch.distributed: which rank holds the job up, since when, and where in its code.

Set ``OTEL_PYTHON_TORCHDIST_ENABLED=true``, or call ``TorchDistInstrumentor().instrument()``.

The names below are imported on first use: wherever this package is installed, every ``import torch`` imports it,
and must not become slower for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_torchdist.capture.expectations import expect_wait
    from otel_torchdist.capture.steps import mark_step
    from otel_torchdist.instrumentor import TorchDistInstrumentor

__all__ = ["TorchDistInstrumentor", "expect_wait", "mark_step"]

_HOMES = {
    "TorchDistInstrumentor": "otel_torchdist.instrumentor",
    "expect_wait": "otel_torchdist.capture.expectations",
    "mark_step": "otel_torchdist.capture.steps",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
