"""The functions of `opentelemetry-configuration` that we use. Only this module imports the package.

The package is experimental, and has no public functions that build single components. So all functions are looked up
when a file is loaded: if a later version lacks one, that is one warning, and the variables decide.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

_PACKAGE: Final = "opentelemetry.configuration"

Function = Callable[..., Any]


class ConfigurationPackage:
    """The package's functions, found or imported when an instance is made."""

    def __init__(self) -> None:
        """Import the package.

        Raises:
            ImportError: It is not installed.
            AttributeError: This version lacks a function.
        """
        self.models = importlib.import_module(f"{_PACKAGE}.models")
        self.load_config_file = _function("", "load_config_file")
        self.resource = _function("._resource", "create_resource")
        self.headers = _function("._common", "_parse_headers")
        self.sampler = _function("._tracer_provider", "_create_sampler")
        self.span_limits = _function("._tracer_provider", "_create_span_limits")
        self.span_exporter = _function("._tracer_provider", "_create_span_exporter")
        self.metric_exporter = _function("._meter_provider", "_create_push_metric_exporter")
        self.metric_reader = _function("._meter_provider", "_create_metric_reader")
        self.temporality = _function("._meter_provider", "_map_temporality")
        self.histogram_aggregation = _function("._meter_provider", "_map_histogram_aggregation")
        self.cardinality_limits = _function("._meter_provider", "_create_cardinality_limits")
        self.exemplar_filter = _function("._meter_provider", "_create_exemplar_filter")
        self.view = _function("._meter_provider", "_create_view")
        self.log_exporter = _function("._logger_provider", "_create_log_record_exporter")
        self.log_limits = _function("._logger_provider", "_create_log_record_limits")


def _function(module: str, name: str) -> Function:
    return getattr(importlib.import_module(_PACKAGE + module), name)
