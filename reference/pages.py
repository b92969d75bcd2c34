"""Generates the text of each reference page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from otel_torchdist import environment_variables
from otel_torchdist.runs.tables.schema import TABLES
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.semconv import attributes, names
from reference.constants import Constant, constants

TABLES_BEGIN: Final = "<!-- Made from otel_torchdist/runs/tables/schema.py by `make docs`: change it there. -->"
TABLES_END: Final = "<!-- Until here. -->"
ALERTS_BEGIN: Final = "<!-- Made from deploy/prometheus/rules/alerts.yaml by `make docs`: change it there. -->"
OURS: Final = "OTEL_PYTHON_TORCHDIST_"
FOR_TESTS: Final = frozenset({environment_variables.OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL})
NAMES: Final = (names, attributes)
SPANS: Final = "spans"
EVENTS: Final = "events (OpenTelemetry log records)"
ATTRIBUTES: Final = (
    "attributes of operations and anchors",
    "attributes of the resource",
    "attributes of a stall",
    "attributes of an import",
)


def settings_page() -> str:
    """Return the page of all environment variables, from `environment_variables`."""
    settings = [setting for setting in constants(environment_variables) if setting.name not in FOR_TESTS]
    intro = environment_variables.__doc__ or ""
    ours = [setting for setting in settings if setting.name.startswith(OURS)]
    others = [setting for setting in settings if not setting.name.startswith(OURS)]
    return titled_page(
        "Settings",
        "otel_torchdist/environment_variables.py",
        *_paragraphs(intro.partition("\n\n")[2]),
        *(_setting(setting) for setting in ours),
        "## OpenTelemetry's own",
        *(_setting(setting) for setting in others),
        "OpenTelemetry's usual variables configure exporters, samplers and resources: all `OTEL_EXPORTER_OTLP_*`, "
        "`OTEL_TRACES_EXPORTER`, `OTEL_TRACES_SAMPLER` and `_ARG`, `OTEL_METRICS_EXPORTER` and `OTEL_LOGS_EXPORTER` "
        "(nothing is pushed while they are unset, because many endpoints accept traces only), `OTEL_SERVICE_NAME`, "
        "`OTEL_RESOURCE_ATTRIBUTES`, `TRACEPARENT` (becomes a link), `OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT`, "
        "`OTEL_ATTRIBUTE_COUNT_LIMIT`, their `OTEL_SPAN_…` forms, and `OTEL_SPAN_LINK_COUNT_LIMIT`.",
    )


def metrics_page() -> str:
    """Return the page of all metrics, from the definitions for both Prometheus and OpenTelemetry."""
    rows = [
        [f"`{metric.name}`", ", ".join(metric.labels) or "-", f"`{metric.otel_name}`", metric.help]
        for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS)
    ]
    labels = [[f"`{label}`", f"`{attribute}`"] for label, attribute in semconv.OTEL_METRIC_ATTRIBUTES.items()]
    return titled_page(
        "Metrics",
        "otel_torchdist/telemetry/metrics/definitions",
        "On `/metrics` for Prometheus, and pushed through OpenTelemetry's API if `OTEL_METRICS_EXPORTER` is set.",
        table(["metric", "labels", "in OpenTelemetry", "meaning"], rows),
        "## Labels and their attributes in OpenTelemetry",
        table(["label", "attribute"], labels),
        "## Numbers that are not finite",
        "A metric that is not a number (NaN) has no series. An infinite one is `+Inf` or `-Inf` on `/metrics`, and is "
        "not pushed: the SDK 1.45 refuses it.",
        "## Native and exponential histograms",
        "`OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=base2_exponential_bucket_histogram` pushes "
        "exponential histograms over OTLP. Their buckets follow the durations. Prometheus, with its OTLP receiver "
        "enabled, stores them as native histograms.",
        "`/metrics` has histograms with fixed buckets. `prometheus_client` has native ones only as an experiment, in "
        "OpenMetrics 2.0, which Prometheus does not request by default. With `convert_classic_histograms_to_nhcb: "
        "true` in its scrape configuration, Prometheus stores those of `/metrics` as native histograms with the same "
        "buckets: one series instead of 23.",
        "## Pushed to Prometheus itself",
        "Prometheus 3 takes OTLP (`--web.enable-otlp-receiver`, `/api/v1/otlp/v1/metrics`). Its default translation "
        "makes the names in the first column of the pushed ones, and `torchdist_rank` of the attribute "
        "`torchdist.rank`. With `translation_strategy: NoTranslation` the names stay as in OpenTelemetry, and a query "
        'quotes them: `{"torchdist.operation.duration_count","torchdist.operation"="all_reduce"}`.',
        "The dashboards, rules and alerts need the labels of `/metrics`. For them, push through the Collector, and let "
        "Prometheus scrape that with `deploy/prometheus/prometheus.yml`, which renames the labels.",
    )


def spans_page() -> str:
    """Return the page of all names in traces and log events, from `semconv`."""
    all_names = [name for module in NAMES for name in constants(module) if isinstance(name.value, str)]
    return titled_page(
        "Spans and events",
        "otel_torchdist/telemetry/semconv",
        _paragraph((semconv.__doc__ or "").partition("\n\n")[2]),
        f"The instrumentation scope is `{semconv.SCOPE_NAME}`, with the package's version and the schema URL "
        f"`{semconv.SCHEMA_URL}`. [Semantic conventions](semantic-conventions.md) has these names as a registry for "
        "Weaver, and a proposal for names that all tools could share.",
        "## Spans",
        _names(name for name in all_names if name.section == SPANS),
        *(
            part
            for section in ATTRIBUTES
            for part in (
                f"## {section[0].upper()}{section[1:]}",
                _names(name for name in all_names if name.section == section and "." in str(name.value)),
            )
        ),
        "## Events",
        "OpenTelemetry log records; their body is the sentence that the log shows.",
        _names(name for name in all_names if name.section == EVENTS),
    )


def with_alerts(page: str, rules: Path) -> str:
    """Return the page on alerts, with a row for each of Prometheus's rules."""
    groups: list[dict[str, Any]] = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    rows = [
        [
            f"[`{rule['alert']}`]({_runbook(rule)})",
            rule["labels"]["severity"],
            rule.get("for", "at once"),
            f"`{on_a_line(rule['expr'])}`",
        ]
        for group in groups
        for rule in group["rules"]
    ]
    before, _, rest = page.partition(ALERTS_BEGIN)
    _, _, after = rest.partition(TABLES_END)
    return "\n\n".join(
        [before + ALERTS_BEGIN, table(["alert", "severity", "after", "expression"], rows), TABLES_END + after]
    )


def _runbook(rule: Mapping[str, Any]) -> str:
    """Return the page and heading that an alert links to; without a heading if labels choose it."""
    _, _, path = rule["annotations"]["runbook_url"].partition("/docs{{ end }}/")
    name, hash_sign, heading = path.partition("#")
    page = re.split(r"/|\{\{", name)[0]
    if page == "alerts":
        return f"#{heading}"
    return f"{page}.md" + (f"#{heading}" if hash_sign and "{{" not in heading else "")


def with_tables(page: str) -> str:
    """Return the page on the archive, with the tables that `export --parquet` writes."""
    before, _, rest = page.partition(TABLES_BEGIN)
    _, _, after = rest.partition(TABLES_END)
    parts = [
        f"**`{name}.parquet`**\n\n"
        + table(
            ["column", "type", "meaning"],
            [[f"`{column.name}`", f"`{column.type}`", column.meaning] for column in columns],
        )
        for name, columns in TABLES.items()
    ]
    return "\n\n".join([before + TABLES_BEGIN, *parts, TABLES_END + after])


def _setting(constant: Constant) -> str:
    text = re.sub(r"\.\. envvar:: \w+\n+", "", constant.doc)
    meaning, _, default = text.rpartition("Default:")
    quoted = default.strip().replace('""', "empty").replace('"', "`")
    return "\n\n".join([f"### `{constant.value}`", *_paragraphs(meaning), f"Default: {quoted}"])


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and lists of a docstring, which blank lines separate."""
    for part in text.strip().split("\n\n"):
        items = re.split(r"^- ", part, flags=re.MULTILINE)
        yield "\n".join(f"- {_paragraph(item)}" for item in items[1:]) if part.startswith("- ") else _paragraph(part)


def _names(names: Iterable[Constant]) -> str:
    return table(["name", "meaning"], [[f"`{name.value}`", _paragraph(name.doc)] for name in names])


def _paragraph(text: str) -> str:
    """Return the text of a docstring as a paragraph of Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", on_a_line(text))


def on_a_line(text: str) -> str:
    """Return the text of a docstring on one line."""
    return " ".join(text.split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def titled_page(title: str, source: str, *parts: str) -> str:
    """Return a page with its title and a note about its source."""
    note = f"<!-- Made from {source} by `make docs`: change it there. -->"
    return "\n\n".join([f"# {title}", note, *(part for part in parts if part)]) + "\n"
