"""Spans in the JSON of Jaeger's two APIs become the same objects."""

from __future__ import annotations

from deploy.native.jaeger_spans import trace_of_jaeger, traces_of_otlp

FIRST, SECOND = "0" * 31 + "1", "0" * 31 + "2"
OTLP = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "train"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": FIRST,
                            "spanId": "00000000000000bb",
                            "parentSpanId": "00000000000000aa",
                            "name": "all_reduce",
                            "startTimeUnixNano": "2000000",
                            "endTimeUnixNano": "5000000",
                            "attributes": [
                                {"key": "rank", "value": {"intValue": "2"}},
                                {"key": "late", "value": {"boolValue": True}},
                                {"key": "dtypes", "value": {"arrayValue": {"values": [{"stringValue": "float32"}]}}},
                                {"key": "shape", "value": {"arrayValue": {"values": [{"intValue": "3"}]}}},
                                {"key": "none", "value": {"arrayValue": {}}},
                            ],
                            "links": [{"traceId": SECOND, "spanId": "00000000000000cc"}],
                        },
                        {
                            "traceId": SECOND,
                            "spanId": "00000000000000cc",
                            "name": "stall",
                            "startTimeUnixNano": "1000000",
                            "endTimeUnixNano": "1000000",
                        },
                    ]
                }
            ],
        },
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "train"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": FIRST,
                            "spanId": "00000000000000aa",
                            "name": "step",
                            "startTimeUnixNano": "1000000",
                            "endTimeUnixNano": "6000000",
                        }
                    ]
                }
            ],
        },
    ]
}
JAEGER = {
    "processes": {"p1": {"serviceName": "train"}},
    "spans": [
        {
            "traceID": FIRST,
            "spanID": "00000000000000bb",
            "operationName": "all_reduce",
            "references": [
                {"refType": "CHILD_OF", "traceID": FIRST, "spanID": "00000000000000aa"},
                {"refType": "FOLLOWS_FROM", "traceID": SECOND, "spanID": "00000000000000cc"},
            ],
            "startTime": 2000,
            "duration": 3000,
            "tags": [
                {"key": "rank", "value": 2},
                {"key": "late", "value": True},
                {"key": "dtypes", "value": '["float32"]'},
                {"key": "shape", "value": "[3]"},
                {"key": "none", "value": "[]"},
            ],
            "processID": "p1",
        },
        {
            "traceID": FIRST,
            "spanID": "00000000000000aa",
            "operationName": "step",
            "startTime": 1000,
            "duration": 5000,
            "processID": "p1",
        },
    ],
}


def test_both_encodings_are_the_same_trace() -> None:
    """Times, parents, links and attributes of any type are equal, and spans are ordered by start."""
    first, second = traces_of_otlp(OTLP)
    assert first == trace_of_jaeger(JAEGER)
    assert [span.name for span in first] == ["step", "all_reduce"]
    assert [(span.trace_id, span.duration_us, span.parent_id) for span in second] == [(SECOND, 0, "")]


def test_nothing_found_is_no_trace() -> None:
    """An empty answer has no traces."""
    assert traces_of_otlp({}) == []
