"""Ports, programs and the timeline of the native stack, without its servers."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.ports import HOST, PortError, Ports, free_port, free_ports, ports_from
from deploy.native.program import Program, ProgramError, Running
from deploy.native.servers import DEPLOY, webhook
from deploy.native.timeline import timeline


def test_ports_come_from_the_environment() -> None:
    """Each port has its own variable; an unset or empty one means the default."""
    chosen = ports_from({"PROMETHEUS_PORT": "9999", "JAEGER_QUERY_PORT": "", "OTHER": "1"})
    assert chosen == dataclasses.replace(Ports(), prometheus_port=9999)
    assert chosen.environment["PROMETHEUS_PORT"] == "9999"


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "\uff19\uff10\uff19\uff10", "90.5"])
def test_what_is_no_port_is_named(text: str) -> None:
    """The error names the variable and the value."""
    with pytest.raises(PortError, match=rf"^ALERTMANAGER_PORT={text} is not a port"):
        ports_from({"ALERTMANAGER_PORT": text})


def test_port_for_two_is_refused() -> None:
    """Such ports are refused, whichever of the two was set."""
    with pytest.raises(PortError, match="COLLECTOR_OTLP_GRPC_PORT and PROMETHEUS_PORT are both 4317"):
        ports_from({"PROMETHEUS_PORT": "4317"})


def test_port_of_another_process_is_named() -> None:
    """The error names the variable that changes it, before anything is started."""
    ports = free_ports()
    ports.check_free()
    with socket.socket() as other:
        other.bind((HOST, ports.jaeger_health_port))
        other.listen()
        with pytest.raises(PortError, match=rf"{ports.jaeger_health_port} is not available .* JAEGER_HEALTH_PORT="):
            ports.check_free()


def test_free_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port is not given again until its process ends, however late that listens there."""
    given, choose = [free_port()], random.randrange
    monkeypatch.setattr(random, "randrange", lambda *ends: given.pop() if given else choose(*ends))
    [first] = given
    assert free_port() != first
    assert given == []


def test_program_that_ends_reports_why(tmp_path: Path) -> None:
    """The error contains the end of the program's log."""
    command = (sys.executable, "-c", "import sys; sys.exit('no such configuration')")
    program = Program("server", command, tmp_path, f"http://{HOST}:9/")
    with (
        pytest.raises(ProgramError, match=r"(?s)server ended with exit code 1.*no such configuration"),
        Running(program),
    ):
        pass


def test_webhook_writes_messages_down(tmp_path: Path) -> None:
    """One message per line, whatever line breaks it had; a request without a body is refused."""
    ports = free_ports()
    with Running(webhook(tmp_path, ports)):
        url = f"http://{HOST}:{ports.webhook_port}/"
        for number in range(2):
            body = json.dumps({"number": number}, indent=2).encode()
            with urllib.request.urlopen(urllib.request.Request(url, data=body)) as answer:
                assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="413"):
            urllib.request.urlopen(urllib.request.Request(url, data=b""))
    lines = (tmp_path / "alerts.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1]


def span(name: str, start_us: int, duration_us: int, span_id: str, parent_id: str = "") -> JaegerSpan:
    """A span of a made-up trace."""
    return JaegerSpan("t", span_id, parent_id, name, start_us, duration_us, {}, (), (), {})


def test_timeline_draws_a_tree_of_bars() -> None:
    """Children are under their parents, each from its begin to its end; open spans end in an arrow."""
    spans = [
        span("all_reduce (in progress)", 500_000, 1_500_000, "c", "a"),
        span("step (rank 0)", 0, 1_000_000, "a"),
        span("step (rank 1)", 0, 2_000_000, "b"),
        span("all_reduce", 0, 250, "d", "b"),
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(timeline(spans, "A trace", 80))
    lines = console.export_text().splitlines()
    names = [line.split("  █")[0].rstrip() for line in lines[2:]]
    assert [name.split("█")[0].rstrip() for name in names] == [
        "step (rank 0)", "  all_reduce (in progress)", "step (rank 1)", "  all_reduce",
    ]  # fmt: skip
    bars = [line[line.index("█") :].split(" ")[0] for line in lines[2:]]
    assert len(bars[2]) == 2 * len(bars[0]) == 42
    assert bars[1].endswith("▶")
    assert len(bars[3]) == 1
    assert lines[2].rstrip().endswith("1.0 s")
    assert lines[5].rstrip().endswith("250 µs")


def test_down_without_up(tmp_path: Path) -> None:
    """The missing stack is reported, and is not an error."""
    command = [sys.executable, "-m", "deploy.native", "down"]
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(DEPLOY.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "It was not running.\n")
