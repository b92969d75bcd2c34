"""Constants that OpenTelemetry's tooling expects in an instrumentation package, and the package's version."""

from __future__ import annotations

from functools import cache

DISTRIBUTION = "otel-torchdist"

INSTRUMENTATION_NAME = "torch_distributed"
"""Name of the entry point, and the name in ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS``."""

OLDEST_TORCH = (2, 8)

_instruments = ("torch >= 2.8",)

_supports_metrics = True


@cache
def package_version() -> str:
    """Return the version of the installed package; '' if it was copied without its metadata."""
    # Imported late: ranks import this module, and never need a version.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""
