"""What `/metrics` says during the stall, asked over HTTP as a Prometheus would."""

from __future__ import annotations

import http.client
from typing import Final

from otel_torchdist import semconv

_TIMEOUT_S: Final = 2.0
_SERIES: Final = 4
"""Of each metric that are shown."""
_SHOWN: Final = (
    semconv.STALLED_METRIC,
    semconv.STALL_INFO,
    semconv.OPERATION_OLDEST_AGE,
    semconv.LAST_STARTED_SEQUENCE,
)


def scrape(target: str, operation: str) -> list[str]:
    """A short sample of `/metrics`: what a stall of `operation` changes; nothing when nobody answers."""
    connection = http.client.HTTPConnection(target, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()
    others = f'{semconv.LABEL_OPERATION}="'
    wanted = sorted(line for line in lines if others not in line or f'{others}{operation}"' in line)
    sample: list[str] = []
    for name in _SHOWN:
        sample += [line for line in wanted if line.startswith(f"{name}{{")][:_SERIES]
    return sample
