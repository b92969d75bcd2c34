"""Who the spans and metrics come from."""

from __future__ import annotations

import os
import socket
from typing import Final

from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES
from opentelemetry.sdk.resources import HOST_NAME, SERVICE_INSTANCE_ID, SERVICE_NAME, Resource

DEFAULT_SERVICE_NAME: Final = "torch.distributed"
_UNKNOWN: Final = "unknown_service"

# What Jaeger's pages know a host by. Without it they take rank and operation for spans of different hosts, and warn of
# skewed clocks where an operation that began in one step ended in the next.
_IP: Final = "ip"
_ANYWHERE: Final = ("192.0.2.1", 9)
"""An address of RFC 5737 that belongs to nobody; connecting a datagram socket sends nothing."""


def environment_resource() -> Resource:
    """What OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and detectors say; host and a service name where they do not.

    Nothing in it belongs to one rank, because one reader may export for several: ranks, processes and runs are
    attributes of spans.
    """
    resource = Resource.create()
    defaults: dict[str, str] = {}
    if HOST_NAME not in resource.attributes:
        defaults[HOST_NAME] = socket.gethostname()
    if str(resource.attributes.get(SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN):
        defaults[SERVICE_NAME] = DEFAULT_SERVICE_NAME
    if f"{SERVICE_INSTANCE_ID}=" not in os.environ.get(OTEL_RESOURCE_ATTRIBUTES, ""):
        # The SDK makes up a random one, or none. It tells apart what several nodes push, and stands in alerts.
        defaults[SERVICE_INSTANCE_ID] = f"{socket.gethostname()}:{os.getpid()}"
    if _IP not in resource.attributes:
        defaults[_IP] = _own_ip()
    return resource.merge(Resource(defaults))


def _own_ip() -> str:
    """The address that this host uses towards others; that of loopback where it has no way out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
