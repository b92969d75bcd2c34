"""A client of `jaeger.api_v3.QueryService`, Jaeger's stable API over gRPC.

The fields of its requests are as in https://github.com/jaegertracing/jaeger-idl/blob/main/proto/api_v3/query_service.proto.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

_PACKAGE: Final = "otel_torchdist.tests.jaeger"
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_TIMESTAMP: Final = ".google.protobuf.Timestamp"
_DURATION: Final = ".google.protobuf.Duration"
_LOOKBACK: Final = datetime.timedelta(days=2)
_TIMEOUT_S: Final = 20.0
_MOST: Final = 100


def found(
    address: str,
    service: str,
    tags: Mapping[str, str],
    operation: str | None = None,
    min_duration: datetime.timedelta | None = None,
) -> dict[str, list[Span]]:
    """Return the traces that `FindTraces` finds, by trace id in hexadecimal digits."""
    request_class = _request_class()
    request = request_class()
    query = request.query
    query.service_name = service
    query.operation_name = operation or ""
    query.attributes.update(tags)
    query.search_depth = _MOST
    now = datetime.datetime.now(datetime.timezone.utc)
    query.start_time_min.FromDatetime(now - _LOOKBACK)
    query.start_time_max.FromDatetime(now)
    if min_duration:
        query.duration_min.FromTimedelta(min_duration)
    with grpc.insecure_channel(address) as channel:
        find = channel.unary_stream(
            "/jaeger.api_v3.QueryService/FindTraces",
            request_serializer=request_class.SerializeToString,
            response_deserializer=TracesData.FromString,
        )
        traces: dict[str, list[Span]] = {}
        for span in _spans(find(request, timeout=_TIMEOUT_S)):
            traces.setdefault(span.trace_id.hex(), []).append(span)
    return traces


def _spans(chunks: Iterator[TracesData]) -> Iterator[Span]:
    for data in chunks:
        for process in data.resource_spans:
            for scope in process.scope_spans:
                yield from scope.spans


def _request_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.FindTracesRequest"))


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="query_service.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"],
    )
    query = file.message_type.add(name="TraceQueryParameters")
    query.field.append(_field("service_name", 1, _FIELD.TYPE_STRING))
    query.field.append(_field("operation_name", 2, _FIELD.TYPE_STRING))
    attributes = f".{_PACKAGE}.TraceQueryParameters.AttributesEntry"
    query.field.append(_field("attributes", 3, _FIELD.TYPE_MESSAGE, attributes, repeated=True))
    query.field.append(_field("start_time_min", 4, _FIELD.TYPE_MESSAGE, _TIMESTAMP))
    query.field.append(_field("start_time_max", 5, _FIELD.TYPE_MESSAGE, _TIMESTAMP))
    query.field.append(_field("duration_min", 6, _FIELD.TYPE_MESSAGE, _DURATION))
    query.field.append(_field("search_depth", 8, _FIELD.TYPE_INT32))
    entry = query.nested_type.add(name="AttributesEntry")
    entry.options.map_entry = True
    entry.field.append(_field("key", 1, _FIELD.TYPE_STRING))
    entry.field.append(_field("value", 2, _FIELD.TYPE_STRING))
    request = file.message_type.add(name="FindTracesRequest")
    request.field.append(_field("query", 1, _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.TraceQueryParameters"))
    return file


def _field(
    name: str,
    number: int,
    kind: descriptor_pb2.FieldDescriptorProto.Type.ValueType,
    message: str | None = None,
    repeated: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    return _FIELD(name=name, number=number, type=kind, label=label, type_name=message)
