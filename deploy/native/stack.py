"""All servers together."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from deploy.native import servers
from deploy.native.jaeger_api import JaegerApi
from deploy.native.ports import HOST, Ports
from deploy.native.program import Running
from deploy.native.prometheus_api import AlertmanagerApi, PrometheusApi


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of the stack.

    Attributes:
        otlp: For jobs, OTLP over gRPC.
        otlp_http: For jobs, OTLP over HTTP.
        jaeger: Its pages and API.
        prometheus: Its pages and API.
        alertmanager: Its pages and API.
    """

    otlp: str
    otlp_http: str
    jaeger: str
    prometheus: str
    alertmanager: str


def addresses_of(ports: Ports) -> Addresses:
    """The addresses of a stack with these ports."""
    chosen = (
        ports.collector_otlp_grpc_port,
        ports.collector_otlp_http_port,
        ports.jaeger_query_port,
        ports.prometheus_port,
        ports.alertmanager_port,
    )
    return Addresses(*(f"http://{HOST}:{port}" for port in chosen))


class Stack:
    """Jaeger, Collector, Prometheus, Alertmanager and a webhook, from `__enter__` to `__exit__`.

    Attributes:
        ports: Where they listen.
        addresses: The same, as URLs.
        messages: The messages from Alertmanager to the webhook, one JSON document per line.
        jaeger: Jaeger; may be stopped and started.
        prometheus: Prometheus; may be stopped and started.
        collector: The Collector; may be stopped and started.
    """

    def __init__(self, binaries: Path, home: Path, ports: Ports, tapes: Path) -> None:
        """Configure the servers.

        Args:
            binaries: Directory that `make stack` has built.
            home: For data and logs.
            ports: Where to listen.
            tapes: Where the jobs' tapes are; Prometheus finds their agents there.
        """
        self.ports = ports
        self.addresses = addresses_of(ports)
        self.messages = home / "webhook" / "alerts.jsonl"
        self.jaeger = Running(servers.jaeger(binaries, home / "jaeger", ports))
        self.collector = Running(servers.collector(binaries, home / "collector", ports))
        self.prometheus = Running(servers.prometheus(binaries, home / "prometheus", ports, tapes))
        self._alertmanager = Running(servers.alertmanager(binaries, home / "alertmanager", ports))
        self._webhook = Running(servers.webhook(home / "webhook", ports))
        self._running = ExitStack()
        # Each after those that it needs.
        self._all = (self._webhook, self.jaeger, self.collector, self._alertmanager, self.prometheus)

    @property
    def ended(self) -> list[str]:
        """Servers that have ended by themselves."""
        return [one.program.name for one in self._all if one.has_ended]

    @property
    def traces(self) -> JaegerApi:
        """Jaeger's API."""
        return JaegerApi(self.addresses.jaeger)

    @property
    def metrics(self) -> PrometheusApi:
        """Prometheus' API."""
        return PrometheusApi(self.addresses.prometheus)

    @property
    def alerts(self) -> AlertmanagerApi:
        """Alertmanager's API."""
        return AlertmanagerApi(self.addresses.alertmanager)

    def __enter__(self) -> Stack:
        """Start all, one after the other.

        Raises:
            ProgramError: One does not come up.
        """
        with self._running:
            for one in self._all:
                self._running.enter_context(one)
            self._running = self._running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()
