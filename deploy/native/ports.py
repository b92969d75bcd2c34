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
    """One port for each listener. In capitals a field is the variable that sets it, `PROMETHEUS_PORT`.

    Attributes:
        collector_otlp_grpc_port: Where jobs send spans.
        collector_otlp_http_port: The same over HTTP.
        collector_prometheus_port: Metrics that jobs have pushed.
        collector_metrics_port: The Collector's own metrics.
        jaeger_query_port: Jaeger's pages and its API.
        jaeger_query_grpc_port: Its API over gRPC.
        jaeger_otlp_grpc_port: Where the Collector sends spans; 4317 is the Collector's.
        jaeger_otlp_http_port: The same over HTTP.
        jaeger_health_port: Reports whether Jaeger is ready.
        jaeger_metrics_port: Jaeger's own metrics.
        prometheus_port: Prometheus' pages and its API.
        alertmanager_port: Alertmanager's pages and its API.
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
        """The variables that the servers' configuration files use."""
        return {name.upper(): str(port) for name, port in dataclasses.asdict(self).items()}

    def check_free(self) -> None:
        """Make sure that no process listens on any of them.

        Raises:
            PortError: A process does.
        """
        for name, port in dataclasses.asdict(self).items():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    reason = (
                        f"port {port} cannot be had ({error.strerror}); choose another: {name.upper()}={port + 1000}"
                    )
                    raise PortError(reason) from None


def ports_from(environ: Mapping[str, str]) -> Ports:
    """The usual ports, except those that the environment sets.

    Raises:
        PortError: A value is not a port, or two are the same.
    """
    usual = dataclasses.asdict(Ports())
    chosen = {name: _port(name.upper(), environ.get(name.upper(), ""), port) for name, port in usual.items()}
    by_port: dict[int, str] = {}
    for name, port in chosen.items():
        if port in by_port:
            raise PortError(f"{by_port[port].upper()} and {name.upper()} are both {port}")
        by_port[port] = name
    return Ports(**chosen)


def free_ports() -> Ports:
    """Ports on which no process listens; see `free_port`."""
    count = len(dataclasses.fields(Ports))
    first = free_port(in_a_row=count)
    return Ports(*range(first, first + count))


def free_port(in_a_row: int = 1) -> int:
    """A port on which no process listens, and which the system gives to none that asks for any port.

    Where what is called by others takes one of the system's, another program may get that port in the next moment, and
    calls meant for it: that of a launcher which has only looked for a free one, or one that takes no strangers.

    It stays reserved until this process ends: other calls, here or in another process, return other ports.

    Args:
        in_a_row: How many are free from there on.
    """
    lowest = int(_SYSTEMS_PORTS.read_text().split()[0])
    if lowest < _USUAL_LOWEST // 2:  # as 1024 on some machines: then nothing is left below, and any will do
        lowest = _USUAL_LOWEST
    while True:
        first = random.randrange(lowest - 11_000, lowest - 4_000)  # below are those of servers, above torch's 29500
        claims: list[socket.socket] = []
        with ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + in_a_row):
                claims.append(held.enter_context(socket.socket(socket.AF_UNIX)))
                claims[-1].bind(f"\0otel-torchdist-port-{port}")  # only one process of a network namespace can
                held.enter_context(socket.socket()).bind(("", port))
            for claim in claims:
                claim.detach()  # it stays open until this process ends
            return first


def _port(variable: str, text: str, usual: int) -> int:
    if not text:
        return usual
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) <= HIGHEST:
        raise PortError(f"{variable}={text} is no port (1 to {HIGHEST})")
    return int(text)
