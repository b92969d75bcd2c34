"""Who the spans and metrics come from."""

from __future__ import annotations

import socket
from typing import Final

from opentelemetry.sdk.resources import HOST_NAME, SERVICE_NAME, Resource

DEFAULT_SERVICE_NAME: Final = "torch.distributed"
_UNKNOWN: Final = "unknown_service"


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
    return resource.merge(Resource(defaults))
