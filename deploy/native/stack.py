"""The stack: all servers together."""

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
    """The URLs of the stack.

    Attributes:
        otlp: OTLP over gRPC, for jobs.
        otlp_http: OTLP over HTTP, for jobs.
        jaeger: Pages and API of Jaeger.
        prometheus: Pages and API of Prometheus.
        alertmanager: Pages and API of Alertmanager.
    """

    otlp: str
    otlp_http: str
    jaeger: str
    prometheus: str
    alertmanager: str


def addresses_of(ports: Ports) -> Addresses:
    """Return the URLs of a stack with these ports."""
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
        ports: Ports of the servers.
        addresses: URLs of the servers.
        messages: File with the webhook's messages from Alertmanager, one JSON document per line.
        jaeger: May be stopped and started by the caller.
        prometheus: May be stopped and started by the caller.
        collector: May be stopped and started by the caller.
    """

    def __init__(self, binaries: Path, home: Path, ports: Ports, tapes: Path) -> None:
        """Configure the servers.

        Args:
            binaries: Directory that `make stack` has built.
            home: Directory for data and logs.
            ports: Ports of the servers.
            tapes: Base directory of the jobs' tapes, where Prometheus finds the agents.
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
        # Each server comes after the servers that it needs.
        self._all = (self._webhook, self.jaeger, self.collector, self._alertmanager, self.prometheus)

    @property
    def ended(self) -> list[str]:
        """Names of servers that have ended by themselves."""
        return [server.program.name for server in self._all if server.has_ended]

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
        """Start all servers, one after the other.

        Raises:
            ProgramError: A server does not come up.
        """
        with self._running:
            for server in self._all:
                self._running.enter_context(server)
            self._running = self._running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()
