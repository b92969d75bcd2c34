"""The ports of the native stack, all on loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
HIGHEST: Final = 65_535
_SYSTEMS_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_LOWEST: Final = 32_768


class PortError(Exception):
    """A port cannot be used; the message names the setting to change."""


@dataclass(frozen=True, slots=True)
class Ports:
    """One port for each listener. The name of a field in capitals is the variable that sets it: `PROMETHEUS_PORT`.

    Attributes:
        collector_otlp_grpc_port: OTLP over gRPC, for jobs.
        collector_otlp_http_port: OTLP over HTTP, for jobs.
        collector_prometheus_port: Metrics that jobs have pushed.
        collector_metrics_port: Metrics of the Collector itself.
        jaeger_query_port: Jaeger's pages and API.
        jaeger_query_grpc_port: Jaeger's API over gRPC.
        jaeger_otlp_grpc_port: OTLP over gRPC, for the Collector, which has the default port 4317 itself.
        jaeger_otlp_http_port: OTLP over HTTP, for the Collector.
        jaeger_health_port: Health check of Jaeger.
        jaeger_metrics_port: Metrics of Jaeger itself.
        prometheus_port: Prometheus' pages and API.
        alertmanager_port: Alertmanager's pages and API.
        webhook_port: The webhook that receives alerts.
    """

    collector_otlp_grpc_port: int = 4317
    collector_otlp_http_port: int = 4318
    collector_prometheus_port: int = 8889
    collector_metrics_port: int = 8888
    jaeger_query_port: int = 16686
    jaeger_query_grpc_port: int = 16685
    jaeger_otlp_grpc_port: int = 14317
    jaeger_otlp_http_port: int = 14318
    jaeger_health_port: int = 13133
    jaeger_metrics_port: int = 8887
    prometheus_port: int = 9090
    alertmanager_port: int = 9093
    webhook_port: int = 9095

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the servers' configuration files."""
        return {name.upper(): str(port) for name, port in dataclasses.asdict(self).items()}

    def check_free(self) -> None:
        """Check that no process listens on any of the ports.

        Raises:
            PortError: A port is in use.
        """
        for name, port in dataclasses.asdict(self).items():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    setting = f"{name.upper()}={port + 1000}"
                    reason = f"port {port} is not available ({error.strerror}); choose another, such as {setting}"
                    raise PortError(reason) from None


def ports_from(environ: Mapping[str, str]) -> Ports:
    """Return the ports that the environment sets, and the defaults for the others.

    Raises:
        PortError: A value is not a port, or two ports are the same.
    """
    defaults = dataclasses.asdict(Ports())
    chosen = {name: _port(name.upper(), environ.get(name.upper(), ""), port) for name, port in defaults.items()}
    by_port: dict[int, str] = {}
    for name, port in chosen.items():
        if port in by_port:
            raise PortError(f"{by_port[port].upper()} and {name.upper()} are both {port}")
        by_port[port] = name
    return Ports(**chosen)


def free_ports() -> Ports:
    """Return ports on which no process listens; see `free_port`."""
    count = len(dataclasses.fields(Ports))
    first = free_port(in_a_row=count)
    return Ports(*range(first, first + count))


def free_port(in_a_row: int = 1) -> int:
    """Return a port on which no process listens, outside the system's range of ephemeral ports.

    A port from that range could be given, a moment later, to any other program that asks for an ephemeral port, such as
    a launcher, which would then receive requests meant for this one.

    The port stays reserved until this process ends: other calls, in this or another process, return other ports.

    Args:
        in_a_row: Number of consecutive free ports, of which the first is returned.
    """
    lowest = int(_SYSTEMS_PORTS.read_text().split()[0])
    if lowest < _USUAL_LOWEST // 2:  # 1024 on some machines: no ports are left below, so use any
        lowest = _USUAL_LOWEST
    while True:
        first = random.randrange(lowest - 11_000, lowest - 4_000)  # above the ports of servers, below torch's 29500
        claims: list[socket.socket] = []
        with ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + in_a_row):
                claims.append(sockets.enter_context(socket.socket(socket.AF_UNIX)))
                claims[-1].bind(f"\0otel-torchdist-port-{port}")  # fails if a process of this network namespace has it
                sockets.enter_context(socket.socket()).bind(("", port))
            for claim in claims:
                claim.detach()  # the claim stays open until this process ends
            return first


def _port(variable: str, text: str, default: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) <= HIGHEST:
        raise PortError(f"{variable}={text} is not a port (1 to {HIGHEST})")
    return int(text)
