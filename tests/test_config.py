"""The settings: defaults, accepted values, and what is logged about the others."""

import ast
import dataclasses
import inspect
import logging
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_torchdist import environment_variables
from otel_torchdist.config import Config, PageAccess, Parameter, ReaderHome
from otel_torchdist.environment_variables import (
    OTEL_CONFIG_FILE,
    OTEL_PYTHON_TORCHDIST_OTLP_FILE,
    OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL,
)

PARAMETERS: dict[str, Parameter[object]] = {
    field.name: field.metadata["parameter"] for field in dataclasses.fields(Config)
}

ON = {"OTEL_PYTHON_TORCHDIST_ENABLED": "true"}
READ_ELSEWHERE = (OTEL_CONFIG_FILE, OTEL_PYTHON_TORCHDIST_OTLP_FILE, OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL)
"""Variables used by an exporter, and before there are settings."""


def variable(field: str) -> str:
    """Return the environment variable of a field."""
    return PARAMETERS[field].variable


def documentation() -> dict[str, str]:
    """Return the text that stands under each constant of the reference."""
    body = ast.parse(inspect.getsource(environment_variables)).body
    return {
        name.id: text.value
        for assignment, below in pairwise(body)
        if isinstance(assignment, ast.Assign) and isinstance(below, ast.Expr)
        for name in assignment.targets
        if isinstance(name, ast.Name)
        for text in [below.value]
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    }


def test_constructor_has_the_same_defaults() -> None:
    """A Config built in code starts from what an empty environment gives."""
    assert Config() == Config.from_environment({})


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("enabled", "true", True),
        ("enabled", "TRUE", True),
        ("enabled", " True ", True),
        ("enabled", "False", False),
        ("reader", "agent", ReaderHome.AGENT),
        ("reader", "Thread", ReaderHome.THREAD),
        ("share", "0.25", 0.25),
        ("share", "1.0", 1.0),
        ("share", ".5", 0.5),
        ("node_file", "/none/config.yaml", Path("/none/config.yaml")),
        ("stall_timeout", "100", 0.1),
        ("stall_timeout", "2500", 2.5),
        ("span_budget", "1", 1),
        ("numerics_ranks", "All", ()),
        ("numerics_ranks", "3", (range(3, 4),)),
        ("numerics_ranks", "0, 8-15", (range(1), range(8, 16))),
        ("page", "off", PageAccess.OFF),
        ("page", "On", PageAccess.ON),
        ("trace_url", "http://jaeger:16686/trace/{trace_id}", "http://jaeger:16686/trace/{trace_id}"),
        ("docs_url", "https://docs.example/torchdist/", "https://docs.example/torchdist"),
        ("tape_dir", "/tmp/tapes", Path("/tmp/tapes")),
        ("tape_on_disk", "true", True),
        ("tape_records", "64", 64),
        ("tape_records", "1048576", 1048576),
        ("off_file", "/run/off", Path("/run/off")),
        ("overhead_budget", "0", 0.0),
        ("overhead_budget", "0.25", 0.25),
        ("keep_runs", "0", 0),
        ("keep_bytes", "1024", 1024),
        ("archive", "/shared/archive", Path("/shared/archive")),
        ("archive_bytes", "1048576", 1 << 20),
        ("bundles", "/shared/bundles", Path("/shared/bundles")),
        ("bundle_bytes", "1048576", 1 << 20),
        ("prometheus_host", "0.0.0.0", "0.0.0.0"),
        ("prometheus_port", "0", 0),
        ("prometheus_port", "65535", 65535),
        ("sdk_disabled", "true", True),
        ("disabled_instrumentations", "requests, torch_distributed,,", frozenset({"requests", "torch_distributed"})),
    ],
)
def test_accepted_value(field: str, text: str, value: object, caplog: pytest.LogCaptureFixture) -> None:
    """A valid value arrives in its field, converted from milliseconds to seconds, and nothing is logged."""
    config = Config.from_environment({variable(field): text})
    assert config == dataclasses.replace(Config(), **{field: value})
    assert not caplog.records


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("share", "1.1"), ("share", "-0.1"), ("share", "nan"), ("share", "1e-1"), ("node_file", "config.yaml"),
        ("enabled", "1"), ("enabled", "yes"), ("reader", "process"), ("stall_timeout", "99"), ("stall_timeout", "10s"),
        ("stall_timeout", "1e4"), ("stall_timeout", "9" * 40), ("stall_timeout", "9" * 5000), ("span_budget", "0"),
        ("span_budget", "-1"), ("numerics_ranks", "15-8"), ("numerics_ranks", "0,,1"), ("numerics_ranks", "-1"),
        ("numerics_ranks", "0-"), ("numerics_ranks", "odd"), ("numerics_ranks", "٣"), ("page", "true"),
        ("trace_url", "http://jaeger:16686/"), ("trace_url", "javascript:alert({trace_id})"),
        ("trace_url", "http://jaeger/ {trace_id}"), ("docs_url", "javascript:alert()"), ("docs_url", "docs"),
        ("tape_dir", "tapes"), ("tape_dir", "~/tapes"),
        ("tape_on_disk", "on"), ("tape_records", "63"), ("tape_records", "1048577"), ("tape_records", "1_000"),
        ("off_file", "off"), ("overhead_budget", "-1"), ("overhead_budget", "101"), ("overhead_budget", "1e-3"),
        ("overhead_budget", "nan"), ("overhead_budget", "1 %"),
        ("keep_runs", "٣"), ("keep_bytes", "256MiB"), ("archive", "archive"), ("archive_bytes", "1048575"),
        ("archive_bytes", "1GiB"), ("bundles", "here"), ("bundle_bytes", "1"),
        ("prometheus_port", "65536"), ("prometheus_port", "http"), ("sdk_disabled", "0"),
    ],
)  # fmt: skip
def test_invalid_value(field: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A value that cannot be used gives one warning with the setting, the value and the default."""
    config = Config.from_environment({variable(field): text})
    assert config == Config()
    [record] = caplog.records
    assert (record.name, record.levelno) == ("otel_torchdist", logging.WARNING)
    assert record.getMessage().startswith(f"{variable(field)}={text!r:.100} is not ")
    assert record.getMessage().endswith(f": using {PARAMETERS[field].default or 'none'}")


def test_warning_states_what_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """The warning is a whole sentence with the range, so that the next try is right."""
    Config.from_environment({variable("stall_timeout"): "10s", variable("reader"): "process"})
    assert [record.getMessage() for record in caplog.records] == [
        "OTEL_PYTHON_TORCHDIST_READER='process' is not agent, thread or none: using agent",
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT='10s' is not a whole number of milliseconds "
        "from 100 to 2147483647: using 10000",
    ]


@pytest.mark.parametrize("field", PARAMETERS)
@pytest.mark.parametrize("text", ["", "  "])
def test_empty_is_unset(field: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """An empty or blank value is the same as none, without a warning."""
    assert Config.from_environment({variable(field): text}) == Config()
    assert not caplog.records


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(PARAMETERS)), st.text())
def test_any_text_is_survived(caplog: pytest.LogCaptureFixture, field: str, text: str) -> None:
    """Whatever the value of a variable, reading it never raises and warns once at most."""
    caplog.clear()
    config = Config.from_environment({variable(field): text})
    if caplog.records and field != "node_file":  # a folder is accepted as a path, but not as a file
        assert config == Config()
    assert len(caplog.records) <= 1


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        (ON, True),
        (ON | {"OTEL_SDK_DISABLED": "true"}, False),
        (ON | {"OTEL_SDK_DISABLED": "false"}, True),
        (ON | {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "flask,torch_distributed"}, False),
        (ON | {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}, False),
        (ON | {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "torch"}, True),
    ],
)
def test_switched_on(environ: dict[str, str], on: bool) -> None:
    """Only our own switch turns us on, and each of OpenTelemetry's turns us off again."""
    assert Config.from_environment(environ).switched_on is on


def test_own_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the process's own environment is used."""
    monkeypatch.setenv(variable("span_budget"), "7")
    assert Config.from_environment().span_budget == 7


def test_reference_is_complete() -> None:
    """Every variable of the reference is read, and its documented default is the real one."""
    texts = documentation()
    read = {parameter.variable: parameter for parameter in PARAMETERS.values()}
    assert set(texts) == {*read, *READ_ELSEWHERE}
    for name, text in texts.items():
        assert getattr(environment_variables, name) == name
        assert f".. envvar:: {name}\n" in text
    for name, parameter in read.items():
        default = parameter.default.replace(f"-{os.getuid()}", "-<uid>")
        assert f'Default: "{default}"' in texts[name]
