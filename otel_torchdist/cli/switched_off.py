"""Why nothing is recorded, as far as this terminal's environment shows it: a job's is often the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_torchdist.config import Config
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_ENABLED
from otel_torchdist.package import INSTRUMENTATION_NAME

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def reasons(environ: Mapping[str, str], config: Config) -> list[str]:
    """Return settings that keep jobs with this environment from being recorded, one sentence each.

    Args:
        environ: The environment.
        config: The configuration read from it.
    """
    found: list[str] = []
    switch = environ.get(OTEL_PYTHON_TORCHDIST_ENABLED, "").strip()
    if not switch:
        return found  # a job may have it in its own environment
    if not config.enabled:
        found.append(f"{OTEL_PYTHON_TORCHDIST_ENABLED}={switch} is not `true`")
    autoload = environ.get(_AUTOLOAD, "1")
    if autoload != "1":  # torch accepts no other value
        found.append(
            f"{_AUTOLOAD}={autoload} keeps torch from loading otel_torchdist: leave it out, start the job with "
            "`opentelemetry-instrument`, or call `TorchDistInstrumentor().instrument()`"
        )
    if config.sdk_disabled:
        found.append("OTEL_SDK_DISABLED=true switches all of OpenTelemetry off")
    for name in sorted(config.disabled_instrumentations & {INSTRUMENTATION_NAME, "*"}):
        found.append(f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS contains `{name}`")
    return found


def with_reasons(message: str, environ: Mapping[str, str], config: Config) -> str:
    """Append possible reasons to a message that nothing was found."""
    return "\n".join([message, *(f"  {reason}" for reason in reasons(environ, config))])
