"""An embedded ClickHouse with spans, as the Collector's exporter stores them.

Arguments: a file of OTLP JSON lines, and a JSON file with a list of statements. Prints a JSON object with the rows of
each statement that has any, by its place in the list.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from chdb import session

TEXT, TEXTS = "LowCardinality(String)", "Map(LowCardinality(String), String)"
COLUMNS = {
    "Timestamp": "DateTime64(9)",
    "TraceId": "String",
    "SpanId": "String",
    "ParentSpanId": "String",
    "TraceState": "String",
    "SpanName": TEXT,
    "SpanKind": TEXT,
    "ServiceName": TEXT,
    "ResourceAttributes": TEXTS,
    "ScopeName": "String",
    "ScopeVersion": "String",
    "SpanAttributes": TEXTS,
    "Duration": "UInt64",
    "StatusCode": TEXT,
    "StatusMessage": "String",
}
"""Names, types and order of the columns of `otel_traces` but events and links (Collector contrib, 2025)."""


def text_of(value: dict[str, Any]) -> str:
    """An attribute as the exporter writes it: text, whatever its type."""
    [(kind, content)] = value.items()
    if kind == "arrayValue":
        return json.dumps([one["stringValue"] for one in content.get("values", [])])
    if kind == "doubleValue":
        return f"{content:g}" if content == int(content) else repr(content)
    return str(content).lower() if kind == "boolValue" else str(content)


def attributes_of(pairs: list[dict[str, Any]]) -> dict[str, str]:
    """Attributes by their names."""
    return {pair["key"]: text_of(pair["value"]) for pair in pairs}


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of all spans of a file."""
    return [
        {
            "Timestamp": f"{int(span['startTimeUnixNano']) // 10**9}.{int(span['startTimeUnixNano']) % 10**9:09d}",
            "TraceId": span["traceId"],
            "SpanId": span["spanId"],
            "ParentSpanId": span.get("parentSpanId", ""),
            "SpanName": span["name"],
            "SpanKind": "Internal",
            "ServiceName": "torch.distributed",
            "ResourceAttributes": attributes_of(sent["resource"]["attributes"]),
            "ScopeName": scope["scope"]["name"],
            "SpanAttributes": attributes_of(span["attributes"]),
            "Duration": int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]),
        }
        for line in path.read_text().splitlines()
        for sent in json.loads(line)["resourceSpans"]
        for scope in sent["scopeSpans"]
        for span in scope["spans"]
    ]


with tempfile.TemporaryDirectory() as folder:
    engine = session.Session(folder)
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    engine.query(
        f"CREATE TABLE otel_traces ({columns}) ENGINE = MergeTree PARTITION BY toDate(Timestamp) "
        "ORDER BY (ServiceName, SpanName, toDateTime(Timestamp), Timestamp)"
    )
    lines = "\n".join(json.dumps(row) for row in rows_of(Path(sys.argv[1])))
    engine.query(f"INSERT INTO otel_traces FORMAT JSONEachRow {lines}")
    answers = {}
    for place, statement in enumerate(json.loads(Path(sys.argv[2]).read_text())):
        answer = str(engine.query(statement, "JSON"))
        if answer.strip():
            answers[place] = json.loads(answer)["data"]
    engine.close()
print(json.dumps(answers))
