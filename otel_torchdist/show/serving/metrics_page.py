"""Serves `/metrics` over HTTP with prometheus_client's application, on the first free one of 16 ports."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Final, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app  # pyright: ignore[reportUnknownVariableType]

from otel_torchdist.environment_variables import OTEL_EXPORTER_PROMETHEUS_HOST, OTEL_EXPORTER_PROMETHEUS_PORT
from otel_torchdist.show.serving.docs import with_docs
from otel_torchdist.show.serving.http_server import App, HttpServer, SharedPage
from otel_torchdist.show.serving.site import Site

PORTS_TRIED: Final = 16
RETRY_S: Final = 30.0
"""Seconds between two attempts to listen. The jobs that hold the ports end eventually."""
_LAST_PORT: Final = 65535

_logger = logging.getLogger("otel_torchdist")


class MetricsServer:
    """Serves a registry on one port, from daemon threads, until it is stopped.

    Attributes:
        port: The port; None while nothing is served.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        last_port: int | None = None,
        site: Site | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without opening a port.

        Args:
            host: Address or name to listen on; IPv4 if it has both.
            port: The first of the 16 ports to try; 0 for any free one.
            registry: The registry to serve.
            last_port: Port of a predecessor, tried before all others if it is among those 16.
            site: The live page beside it; None for none.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._host = host
        self._first_port = port
        self._last_port = last_port
        self._registry = registry
        self._site = site
        self._server: HttpServer | None = None
        self._tried_at = float("-inf")
        self._has_warned = False
        self.port: int | None = None

    def start(self) -> bool:
        """Listen and serve; returns False, after one warning, while that is not possible. Retries every 30 seconds."""
        if self._server is not None:
            return True
        if self._now() - self._tried_at < RETRY_S:
            return False
        self._tried_at = self._now()
        self._server = self._open()
        if self._server is None:
            return False
        metrics = SharedPage(cast("App", make_wsgi_app(self._registry)))
        self._server.serve(with_docs(metrics if self._site is None else self._site.beside(metrics)))
        self.port = self._server.port
        if self._has_warned:
            _logger.info("/metrics is now served on port %d", self.port)
        elif self._first_port not in (0, self.port):
            _logger.info("port %d is taken: /metrics is served on port %d", self._first_port, self.port)
        return True

    def stop(self) -> None:
        """Close the port and every connection, and wait for the threads; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        self.port, self._tried_at = None, float("-inf")

    def _open(self) -> HttpServer | None:
        first = self._first_port
        ports = list(range(first, min(first + PORTS_TRIED, _LAST_PORT + 1))) if first else [0]
        if self._last_port is not None and (self._last_port in ports or not first):
            ports.insert(0, self._last_port)
        try:
            return HttpServer(self._host, ports, "metrics")
        except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
            has_warned, self._has_warned = self._has_warned, True
            if has_warned:
                return None
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                _logger.warning(
                    "%s=%d: all ports from %d to %d are taken: /metrics is not served until one is free",
                    OTEL_EXPORTER_PROMETHEUS_PORT, first, first, ports[-1],
                )  # fmt: skip
            else:
                _logger.warning(
                    "%s=%.100r, %s=%d: cannot listen there (%s): /metrics is not served",
                    OTEL_EXPORTER_PROMETHEUS_HOST, self._host, OTEL_EXPORTER_PROMETHEUS_PORT, first, error,
                )  # fmt: skip
            return None
