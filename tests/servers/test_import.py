"""What is imported from files, as a real Jaeger shows it: complete, and once however often it is imported."""

from __future__ import annotations

import dataclasses
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.native import servers
from deploy.native.jaeger_api import JaegerApi
from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.ports import HOST, Ports, free_ports
from deploy.native.program import Running
from deploy.native.stack import Stack
from otel_torchdist.cli.export.recording_spans.trace import Traces, traces_of
from otel_torchdist.model.ids import run_label
from otel_torchdist.telemetry.export.environment import DEFAULT_SERVICE_NAME, imported_resource
from otel_torchdist.telemetry.export.outputs import file_delivery, otlp_delivery
from tests.cli.export.recording_spans.recordings import at, stalled

PAGE: Final = servers.DEPLOY.parent / "docs" / "leftovers.md"


@pytest.fixture(scope="module")
def traces() -> Traces:
    """The spans of eight ranks, one of which does not come."""
    return traces_of(at(stalled(ranks=8, calls=150, absent=5).found(now_s=60.0), time.time_ns()).selected())


@dataclasses.dataclass(frozen=True)
class Backend:
    """A Jaeger.

    Attributes:
        otlp: Where it takes spans; it answers when it has stored them.
        otlp_http: The same over HTTP.
        api: Where it shows them.
    """

    otlp: str
    otlp_http: str
    api: JaegerApi

    def imported(self, traces: Traces) -> None:
        """Send all spans, as the command does."""
        delivery = otlp_delivery(imported_resource(), self.otlp)
        delivery.send(traces.spans)
        assert delivery.accepted == len(traces.spans)

    def calls(self, traces: Traces) -> list[JaegerSpan]:
        """The trace with the calls, as it is shown."""
        return self.api.trace(f"{traces.calls[0].trace_id:032x}")

    def stall(self, traces: Traces) -> list[JaegerSpan]:
        """The trace of the stall, as it is shown."""
        return self.api.trace(f"{traces.stalls[0][0].trace_id:032x}")


def backend_at(ports: Ports, api: JaegerApi) -> Backend:
    """The Jaeger on these ports."""
    return Backend(f"http://{HOST}:{ports.jaeger_otlp_grpc_port}", f"http://{HOST}:{ports.jaeger_otlp_http_port}", api)


@pytest.fixture(scope="module")
def in_memory(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A Jaeger that keeps spans in memory, where nothing replaces a span with the same id."""
    ports, home = free_ports(), tmp_path_factory.mktemp("jaeger")
    text = (servers.DEPLOY / "jaeger" / "config.yaml").read_text()
    before, badger, rest = text.partition("        badger:\n")
    _, query, rest = rest.partition("  jaeger_query:\n")
    assert badger and query
    config = home / "memory.yaml"
    config.write_text(f"{before}        memory:\n          max_traces: 100\n\n{query}{rest}")
    program = servers.jaeger(binaries, home, ports)
    with Running(dataclasses.replace(program, command=(program.command[0], "--config", f"file:{config}"))) as jaeger:
        api = JaegerApi(f"http://{HOST}:{ports.jaeger_query_port}")
        yield backend_at(ports, api)
        jaeger.stop(signal.SIGKILL)  # see the stack's


@pytest.fixture(scope="module", params=["disk", pytest.param("memory", marks=pytest.mark.thorough)])
def backend(request: pytest.FixtureRequest, stack: Stack, in_memory: Backend) -> Backend:
    """Jaeger as `deploy` has it, and one with the other storage."""
    if request.param == "memory":
        return in_memory
    return backend_at(stack.ports, stack.traces)


def test_the_import_is_complete(backend: Backend, traces: Traces) -> None:
    """Jaeger has every span below its parent, without a warning, and finds the stall as it finds that of a live job."""
    backend.imported(traces)
    shown = backend.calls(traces)
    assert len(shown) == len(traces.calls)
    ids = {span.span_id for span in shown}
    assert [span.name for span in shown if not span.parent_id] == ["imported flight recorder"]
    assert all(span.parent_id in ids for span in shown if span.parent_id)
    assert not any(span.warnings for span in (*shown, *backend.stall(traces)))
    run = run_label(traces.run_id)
    found = backend.api.find(DEFAULT_SERVICE_NAME, {"torchdist.run": run, "torchdist.stalled": "true"})
    roots = {span.name for trace in found for span in trace if not span.parent_id}
    assert roots == {"imported flight recorder", "stall: all_reduce (absent)"}


def test_a_second_import_shows_nothing_twice(backend: Backend, traces: Traces) -> None:
    """The same spans arrive again, and Jaeger shows each once."""
    backend.imported(traces)
    backend.imported(traces)
    assert len(backend.calls(traces)) == len(traces.calls)
    assert len(backend.stall(traces)) == len(traces.stalls[0])


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's command needs curl")
def test_a_file_that_is_sent_later_is_the_same_import(backend: Backend, traces: Traces, tmp_path: Path) -> None:
    """The page's loop sends a file, and its spans are those that were sent before, so that each is shown once."""
    backend.imported(traces)
    file_delivery(imported_resource(), tmp_path / "spans.jsonl").send(traces.spans)
    [loop] = re.findall(r"^  (while .*?done < spans.jsonl)$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    loop = loop.replace("http://localhost:4318", backend.otlp_http)
    done = subprocess.run(["bash", "-e", "-c", loop], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, '{"partialSuccess":{}}' * 3), done.stderr
    assert len(backend.calls(traces)) == len(traces.calls)
    assert len(backend.stall(traces)) == len(traces.stalls[0])
