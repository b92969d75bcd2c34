"""Switches instrumentation on and off through OpenTelemetry's usual interface.

    from otel_torchdist import TorchDistInstrumentor

    TorchDistInstrumentor().instrument()

Spans and metrics then go to the given providers (`tracer_provider`, `meter_provider`, `logger_provider`), else to the
global ones. With `OTEL_PYTHON_TORCHDIST_ENABLED=true` and without code changes, they go to the exporters that the
standard `OTEL_*` variables configure. This module is not imported then.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from otel_torchdist.config import Config
from otel_torchdist.environment_variables import OTEL_CONFIG_FILE
from otel_torchdist.launch.switch import SWITCH, with_reader_thread
from otel_torchdist.node.job.share import belongs_to_share
from otel_torchdist.package import _instruments  # pyright: ignore[reportPrivateUsage]  # OpenTelemetry's convention

if TYPE_CHECKING:
    from otel_torchdist.telemetry.export.outputs import Outputs


class TorchDistInstrumentor(BaseInstrumentor):
    """OpenTelemetry's instrumentor for `torch.distributed`. A singleton."""

    @property
    def _is_instrumented_by_opentelemetry(self) -> bool:
        """State of the base class. The environment may have switched on before this class was imported."""
        return SWITCH.is_on

    @_is_instrumented_by_opentelemetry.setter
    def _is_instrumented_by_opentelemetry(self, value: bool) -> None:
        SWITCH.is_on = value

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed."""
        return _instruments

    def _instrument(self, **kwargs: Any) -> None:
        """Switch on, immediately if torch.distributed is loaded, else with the first process group.

        Args:
            **kwargs: `tracer_provider`, `meter_provider`, `logger_provider`: providers of spans, metrics and stall
                events, the global ones by default. `on_stall`: called with a `StalledRun`, once per stall, in one of
                the ranks, on a thread. `before_operation`, `after_operation`: called with an `OperationCall` around
                each operation of this rank. `hooks`: one or several `Hooks`, which add filters. `config`: a `Config`
                to use unchanged instead of the environment's.
        """
        given: Config | None = kwargs.pop("config", None)
        config = given or with_reader_thread(Config.from_environment())
        if os.environ.get(OTEL_CONFIG_FILE) and given is None:
            declared = _take_declared(kwargs)
            if "share" in declared and not belongs_to_share(config.share, os.environ):
                return
        SWITCH.turn_on(config, functools.partial(_outputs_of_providers, kwargs), kwargs)

    def _uninstrument(self, **kwargs: Any) -> None:
        """Switch off and restore torch. Recorded data is exported first."""
        SWITCH.turn_off()


def _take_declared(arguments: dict[str, Any]) -> set[str]:
    """Remove the settings in a declarative configuration, and return their names.

    OpenTelemetry's configurator passes the keys of our section as arguments. `Config` has read them from the file.
    """
    declared = {field.name for field in dataclasses.fields(Config)} & arguments.keys()
    if not isinstance(arguments.get("hooks"), (str, list)):  # else it is an argument in a program
        declared.discard("hooks")
    for name in declared:
        del arguments[name]
    return declared


def _outputs_of_providers(providers: dict[str, Any]) -> Outputs:
    from otel_torchdist.telemetry.export.outputs import outputs_of_providers

    return outputs_of_providers(
        tracer_provider=providers.get("tracer_provider"),
        meter_provider=providers.get("meter_provider"),
        logger_provider=providers.get("logger_provider"),
    )
