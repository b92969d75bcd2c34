"""The sources of settings: environment variables, then the two configuration files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_torchdist import environment_variables as env
from otel_torchdist.config.declared_file import DeclaredFile, items_in, mapping_in, text_of
from otel_torchdist.package import INSTRUMENTATION_NAME

SECTION: Final = ("instrumentation/development", "python", INSTRUMENTATION_NAME)
"""Keys that lead to our settings in a declarative configuration."""
_PULL: Final = "meter_provider.readers.pull.exporter.prometheus/development"

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True)
class SettingSource:
    """The texts of settings from one source.

    Attributes:
        texts: Text of each environment variable, or of the key that replaces it.
        file: The file in messages; '' for the environment.
        keys: In a file, the key of each variable.
    """

    texts: Mapping[str, str]
    file: str = ""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])

    def text(self, variable: str) -> str:
        """Return the stripped text of a setting; '' if this source does not have it."""
        return self.texts.get(variable, "").strip()

    def described(self, variable: str) -> str:
        """Return a setting and its value for a warning, such as `VARIABLE='value'` or `FILE: key='value'`."""
        key = f"{self.file}: {self.keys[variable]}" if self.file else variable
        return f"{key}={self.text(variable)!r:.100}"


def file_source(file: DeclaredFile, variables: Mapping[str, str], environ: Mapping[str, str]) -> SettingSource:
    """Return the settings in a configuration file. What cannot be used is logged as a warning.

    Args:
        file: The file.
        variables: Environment variable of each key.
        environ: For references such as `${VAR}`.
    """
    if file.problem:
        _logger.warning("%s: %s: its settings are not used", file.name, file.problem)
    texts: dict[str, str] = {}
    keys: dict[str, str] = {}

    def add(variable: str, key: str, value: object) -> None:
        text = text_of(value, environ)
        if text is None:
            _logger.warning("%s: %s is neither a scalar nor a list of scalars: it is ignored", file.name, key)
        elif text:
            texts[variable], keys[variable] = text, key

    add(env.OTEL_SDK_DISABLED, "disabled", file.document.get("disabled"))
    for host_or_port, variable in (
        ("host", env.OTEL_EXPORTER_PROMETHEUS_HOST),
        ("port", env.OTEL_EXPORTER_PROMETHEUS_PORT),
    ):
        add(variable, f"{_PULL}.{host_or_port}", _pull_exporter(file).get(host_or_port))
    if SECTION[-1] in file.part(*SECTION[:-1]):  # as for all instrumentations in a declarative configuration
        add(env.OTEL_PYTHON_TORCHDIST_ENABLED, f"{SECTION[-1]}.enabled", "true")
    for key, value in file.part(*SECTION).items():
        if key in variables:
            add(variables[key], f"{SECTION[-1]}.{key}", value)
        else:
            _warn_of_unknown_key(file, key, variables)
    return SettingSource(texts, file.name, keys)


def _pull_exporter(file: DeclaredFile) -> Mapping[str, Any]:
    """Return the settings of the first Prometheus exporter; empty if there is none."""
    for reader in items_in(file.part("meter_provider"), "readers"):
        exporter = mapping_in(mapping_in(mapping_in(reader, "pull"), "exporter"), "prometheus/development")
        if exporter:
            return exporter
    return {}


def _warn_of_unknown_key(file: DeclaredFile, key: str, known: Mapping[str, str]) -> None:
    import difflib  # imported late: ranks load this module

    similar = difflib.get_close_matches(key, known, 1)
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    _logger.warning("%s: %s has no setting %.100r%s: it is ignored", file.name, INSTRUMENTATION_NAME, key, hint)


def has_console(file: DeclaredFile) -> bool:
    """Return whether a file has an exporter that writes to the terminal."""
    processors = [
        *items_in(file.part("tracer_provider"), "processors"),
        *items_in(file.part("logger_provider"), "processors"),
        *items_in(file.part("meter_provider"), "readers"),
    ]
    return any("console" in mapping_in(mapping_in(item, kind), "exporter") for item in processors for kind in item)
