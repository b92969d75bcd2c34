"""A real OpenTelemetry Collector, which counts the spans that it has accepted; `make stack` builds it."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, Popen
from types import TracebackType
from typing import Final
from urllib.request import urlopen

START_S: Final = 20.0
_CONFIG: Final = Path(__file__).with_suffix(".yaml")
_ACCEPTED: Final = re.compile(r"^otelcol_receiver_accepted_spans(?:_total)?\{.*\} (\S+)$", re.MULTILINE)


def collector_binary() -> Path | None:
    """Where `make stack` puts the Collector; None while it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / "otel-torchdist" / "stack" / "bin" / "otelcol-torchdist"
    return binary if binary.is_file() else None


class Collector:
    """The process, from `__enter__` to `__exit__`, on free loopback ports.

    Attributes:
        grpc: Where it takes OTLP/gRPC.
        http: Where it takes OTLP/HTTP.
    """

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._metrics = ""
        self.grpc = self.http = ""

    def received(self) -> int:
        """How many spans it has accepted, as it says itself."""
        with urlopen(self._metrics, timeout=10) as answer:
            return sum(int(float(count)) for count in _ACCEPTED.findall(answer.read().decode()))

    def __enter__(self) -> Collector:
        """Start.

        Raises:
            RuntimeError: It does not come up.
        """
        grpc, http, metrics = _free_ports(3)
        ports = {"OTLP_GRPC_PORT": grpc, "OTLP_HTTP_PORT": http, "METRICS_PORT": metrics}
        environment = os.environ | {name: str(port) for name, port in ports.items()}
        self._process = Popen(
            [self._binary, "--config", _CONFIG], env=environment, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        self.grpc, self.http = f"http://127.0.0.1:{grpc}", f"http://127.0.0.1:{http}"
        self._metrics = f"http://127.0.0.1:{metrics}/metrics"
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self._end()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.received()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{self._binary} does not come up; {_CONFIG} is its configuration")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
