"""A real OpenTelemetry Collector, built by `make stack`, which counts the accepted spans."""

from __future__ import annotations

import re
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.request import urlopen

from deploy.native.ports import HOST, free_ports
from deploy.native.program import Program, Running
from deploy.native.servers import cache_folder

_CONFIG: Final = Path(__file__).with_suffix(".yaml")
_ACCEPTED: Final = re.compile(r"^otelcol_receiver_accepted_spans(?:_total)?\{.*\} (\S+)$", re.MULTILINE)


def collector_binary() -> Path | None:
    """Return the path of the Collector built by `make stack`; None if it is missing."""
    binary = cache_folder() / "stack" / "bin" / "otelcol-torchdist"
    return binary if binary.is_file() else None


class Collector:
    """A context manager that runs the Collector on free loopback ports.

    Attributes:
        grpc: Endpoint for OTLP/gRPC.
        http: Endpoint for OTLP/HTTP.
    """

    def __init__(self, binary: Path) -> None:
        ports = free_ports()
        self.grpc = f"http://{HOST}:{ports.collector_otlp_grpc_port}"
        self.http = f"http://{HOST}:{ports.collector_otlp_http_port}"
        self._metrics = f"http://{HOST}:{ports.collector_metrics_port}/metrics"
        self._home = tempfile.TemporaryDirectory()
        command = (binary, "--config", _CONFIG)
        program = Program("collector", command, Path(self._home.name), self._metrics, ports.environment)
        self._running = Running(program)

    def received(self) -> int:
        """Return the number of accepted spans, according to the Collector's own metrics."""
        with urlopen(self._metrics, timeout=10) as answer:
            return sum(int(float(count)) for count in _ACCEPTED.findall(answer.read().decode()))

    def __enter__(self) -> Collector:
        """Start the Collector.

        Raises:
            ProgramError: It does not come up.
        """
        try:
            self._running.start()
        except BaseException:
            self._home.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the Collector."""
        self._running.stop(signal.SIGKILL)
        self._home.cleanup()
