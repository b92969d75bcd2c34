"""Reads OpenTelemetry's environment variables in a process without a tracer provider.

They configure the exporters, the sampler, the resource, and the link to a launcher's span.

It follows the SDK's auto-instrumentation: entry points provide exporters and samplers, and the exporters read all
OTEL_EXPORTER_OTLP_* variables themselves.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final, cast

from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_RESOURCE_ATTRIBUTES,
    OTEL_TRACES_SAMPLER,
    OTEL_TRACES_SAMPLER_ARG,
)
from opentelemetry.sdk.resources import HOST_NAME, SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.node.job.description import JobDescription
from otel_torchdist.node.job.description_file import read_description
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink, build_exporter
from otel_torchdist.telemetry.export.exporters import by_protocol, load_entry_point
from otel_torchdist.telemetry.export.sinks import FanOutSink
from otel_torchdist.telemetry.spans.finished_spans import SpanSink

TRACEPARENT: Final = "TRACEPARENT"

_EXPORTER_GROUP: Final = "opentelemetry_traces_exporter"
_SAMPLER_GROUP: Final = "opentelemetry_traces_sampler"
_OTLP: Final = "otlp"
_DEFAULT_SAMPLER: Final = "parentbased_always_on"
_RATIO_SAMPLERS: Final = ("traceidratio", "parentbased_traceidratio")

_logger = logging.getLogger("otel_torchdist")


def environment_sink(resource: Resource) -> FanOutSink:
    """Build a sink for every exporter in OTEL_TRACES_EXPORTER (`otlp` if unset; no exporter for `none`).

    An exporter that cannot be built causes one warning. The other exporters work.
    """
    names = [name.strip() for name in os.environ.get(OTEL_TRACES_EXPORTER, "").split(",") if name.strip()] or [_OTLP]
    sinks: list[SpanSink] = []
    for name in dict.fromkeys(names):
        exporter = _span_exporter(name) if name.lower() != "none" else None
        if exporter is not None:
            sinks.append(ExporterSink(exporter, resource, f"{OTEL_TRACES_EXPORTER}={name}{_endpoint(name)}"))
    return FanOutSink(sinks)


def environment_sampler() -> Sampler:
    """Build the sampler named in OTEL_TRACES_SAMPLER. If that fails, warn once and return the SDK's default."""
    name = os.environ.get(OTEL_TRACES_SAMPLER, "").strip().lower() or _DEFAULT_SAMPLER
    try:
        factory = cast("Callable[[str | float | None], object]", load_entry_point(_SAMPLER_GROUP, name))
        sampler = factory(_sampler_argument(name))
    except Exception as error:
        _logger.warning("%s=%s cannot be used (%s): using %s", OTEL_TRACES_SAMPLER, name, error, _DEFAULT_SAMPLER)
        return DEFAULT_ON
    if isinstance(sampler, Sampler):
        return sampler
    _logger.warning("%s=%s is not a sampler: using %s", OTEL_TRACES_SAMPLER, name, _DEFAULT_SAMPLER)
    return DEFAULT_ON


def environment_links() -> tuple[LinkTarget, ...]:
    """Return a link to the span in TRACEPARENT, set by a launcher for this job; empty without a valid one."""
    carrier = {"traceparent": os.environ.get(TRACEPARENT, "")}
    context = TraceContextTextMapPropagator().extract(carrier, Context())
    parent = get_current_span(context).get_span_context()
    return (LinkTarget(parent.trace_id, parent.span_id),) if parent.is_valid else ()


def _span_exporter(name: str) -> SpanExporter | None:
    try:
        factory = cast(
            "Callable[[], SpanExporter]",
            load_entry_point(_EXPORTER_GROUP, by_protocol(name, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL)),
        )
        return build_exporter(factory)
    except Exception as error:
        _logger.warning(
            "%s=%s: the exporter cannot be created (%s): no spans are exported there", OTEL_TRACES_EXPORTER, name, error
        )
        return None


def _endpoint(name: str) -> str:
    """Return the destination of `otlp`, for a warning; '' for other exporters."""
    return f", {otlp_endpoint()}" if name == _OTLP else ""


def otlp_endpoint() -> str:
    """Return the endpoint of the OTLP exporters as `VARIABLE=value`, without user and password."""
    for variable in (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT):
        endpoint = os.environ.get(variable, "").strip()
        if endpoint:
            return f"{variable}={without_password(endpoint)}"
    return f"no {OTEL_EXPORTER_OTLP_ENDPOINT}"


def without_password(endpoint: str) -> str:
    """Return a URL without user and password."""
    scheme, separator, address = endpoint.rpartition("//")
    return f"{scheme}{separator}{address.rpartition('@')[2]}"


def _sampler_argument(name: str) -> str | float | None:
    """Return OTEL_TRACES_SAMPLER_ARG in the sampler's type. An invalid ratio becomes 1, with one warning."""
    text = os.environ.get(OTEL_TRACES_SAMPLER_ARG)
    if name not in _RATIO_SAMPLERS:
        return text
    try:
        ratio = float(text or "1")
    except ValueError:
        ratio = -1.0
    if 0.0 <= ratio <= 1.0:
        return ratio
    _logger.warning("%s=%s is not a number from 0 to 1: using 1.0", OTEL_TRACES_SAMPLER_ARG, text)
    return 1.0


DEFAULT_SERVICE_NAME: Final = "torch.distributed"
_UNKNOWN: Final = "unknown_service"

# Jaeger's UI identifies a host by this attribute. Without it, Jaeger treats a step and its operations as spans of
# different hosts, and warns of clock skew if an operation began in one step and ended in the next.
_IP: Final = "ip"
_EXTERNAL_ADDRESS: Final = ("192.0.2.1", 9)
"""A documentation address of RFC 5737, assigned to no host; connecting a datagram socket sends nothing."""


def environment_resource(job: JobDescription | None = None, declared: Resource | None = None) -> Resource:
    """Build the resource from OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and detectors, with defaults.

    It has no attributes of a single rank, because one reader may export for several ranks. Ranks, processes and runs
    are attributes of spans.

    Args:
        job: The only exported job; None for any number of jobs.
        declared: Resource of a configuration file; replaces that of the environment.
    """
    resource = _with_service_name(Resource.create() if declared is None else declared)
    defaults: dict[str, AttributeValue] = {}
    if job is not None:
        job_attributes = attributes_of_job(job)
        defaults |= {name: value for name, value in job_attributes.items() if name not in resource.attributes}
    if HOST_NAME not in resource.attributes:
        defaults[HOST_NAME] = socket.gethostname()
    if not (_sets_instance_id() if declared is None else SERVICE_INSTANCE_ID in declared.attributes):
        # The SDK generates a random id, or none. The id distinguishes the metrics of nodes, and appears in alerts.
        defaults[SERVICE_INSTANCE_ID] = f"{socket.gethostname()}:{os.getpid()}"
    if _IP not in resource.attributes:
        defaults[_IP] = _host_ip()
    return resource.merge(Resource(defaults))


def imported_resource() -> Resource:
    """Build the resource of imported spans. It is the same on every host and for every import.

    With a random instance id or this host's name, a repeated import would produce different spans.
    """
    resource = _with_service_name(Resource.create())
    excluded = () if _sets_instance_id() else (SERVICE_INSTANCE_ID,)
    return Resource({name: value for name, value in resource.attributes.items() if name not in excluded})


def _with_service_name(resource: Resource) -> Resource:
    if str(resource.attributes.get(SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN):
        return resource.merge(Resource({SERVICE_NAME: DEFAULT_SERVICE_NAME}))
    return resource


def _sets_instance_id() -> bool:
    return f"{SERVICE_INSTANCE_ID}=" in os.environ.get(OTEL_RESOURCE_ATTRIBUTES, "")


def _host_ip() -> str:
    """Return the address that this host uses to reach other hosts; the loopback address if it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_EXTERNAL_ADDRESS)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


_JOB_FIELDS: Final[Mapping[str, str]] = {
    semconv.SLURM_JOB_ID: "slurm_job_id",
    semconv.SLURM_JOB_NAME: "slurm_job_name",
    semconv.SLURM_ARRAY_JOB_ID: "slurm_array_job_id",
    semconv.SLURM_ARRAY_TASK_ID: "slurm_array_task_id",
    semconv.SLURM_PARTITION: "slurm_partition",
    semconv.SLURM_CLUSTER: "slurm_cluster",
    semconv.SLURM_NODE_ID: "slurm_node_id",
    semconv.K8S_CLUSTER_NAME: "kubernetes_cluster",
    semconv.K8S_NAMESPACE_NAME: "kubernetes_namespace",
    semconv.K8S_POD_NAME: "kubernetes_pod",
    semconv.K8S_POD_UID: "kubernetes_pod_uid",
    semconv.K8S_NODE_NAME: "kubernetes_node",
    semconv.K8S_CONTAINER_NAME: "kubernetes_container",
    semconv.K8S_JOB_NAME: "kubernetes_job",
    semconv.RAY_JOB_ID: "ray_job_id",
    semconv.RAY_SUBMISSION_ID: "ray_submission_id",
    semconv.RAY_TRAIN_RUN: "ray_train_run",
    semconv.RAY_TRAIN_RUN_ID: "ray_train_run_id",
    semconv.ELASTIC_RUN_ID: "elastic_run_id",
    semconv.MLFLOW_RUN_ID: "mlflow_run_id",
    semconv.WANDB_RUN_ID: "wandb_run_id",
    semconv.VCS_REVISION: "git_commit",
}
_ATTEMPT_FIELDS: Final[Mapping[str, str]] = {
    semconv.SLURM_RESTART_COUNT: "slurm_restart_count",
    semconv.ELASTIC_RESTART_COUNT: "elastic_restart_count",
}
_NUMBERS: Final = frozenset({semconv.SLURM_RESTART_COUNT, semconv.ELASTIC_RESTART_COUNT})


def attributes_of_job(job: JobDescription) -> dict[str, AttributeValue]:
    """Return the resource attributes valid for all attempts of a job."""
    attributes = _attributes(job, _JOB_FIELDS)
    if job.command:
        attributes[semconv.PROCESS_COMMAND_ARGS] = list(job.command)
    return attributes


def attributes_of_attempt(job: JobDescription) -> dict[str, AttributeValue]:
    """Return the attributes of a job and one attempt. The restart count of a first attempt is left out."""
    counts = {name: count for name, count in _attributes(job, _ATTEMPT_FIELDS).items() if count != 0}
    return attributes_of_job(job) | counts


def attributes_beyond_resource(
    resource: Mapping[str, AttributeValue], describes_job: bool, tape: TapeReader
) -> dict[str, AttributeValue]:
    """Return the attributes of a rank's description that the resource lacks.

    Args:
        resource: Attributes of the resource.
        describes_job: Whether the resource describes the rank's job. If so, its attributes take precedence, since the
            user may have set them. If not, it describes an agent, which may run in a separate pod.
        tape: The tape of the rank.
    """
    description = read_description(tape.path, tape.owner)
    if description is None:
        return {}
    attributes = attributes_of_attempt(description.job)
    if describes_job:
        return {name: value for name, value in attributes.items() if name not in resource}
    return {name: value for name, value in attributes.items() if not _contains(resource, name, value)}


def _contains(resource: Mapping[str, AttributeValue], name: str, value: AttributeValue) -> bool:
    current = resource.get(name)
    return (list(current) if isinstance(current, tuple) else current) == value


def _attributes(job: JobDescription, names: Mapping[str, str]) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    for name, field in names.items():
        text = getattr(job, field)
        if text:
            attributes[name] = int(text) if name in _NUMBERS and text.isascii() and text.isdecimal() else text
    return attributes
