"""Endpoints that are down, speak something else, or want TLS and a token: what a user is told, by real servers."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.native.ports import HOST, Ports, free_ports
from deploy.native.program import Running
from deploy.native.servers import DEPLOY, collector
from deploy.native.stack import Stack
from deploy.native.training import training_environment
from tests.stack.certificates import Certificate, make_certificate
from tests.stack.jobs import RANKS, running_job

TOKEN = "moon-7"
STEPS = 10
HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


@dataclass(frozen=True)
class Secure:
    """A Collector that asks for TLS and a token, beside the stack's own.

    Attributes:
        ports: Its ports.
        certificate: Its certificate.
        another: One that it does not have.
    """

    ports: Ports
    certificate: Certificate
    another: Certificate


@pytest.fixture(scope="module")
def secure(binaries: Path, stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """With `secure.yaml` laid over the usual configuration."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates need openssl")
    folder = tmp_path_factory.mktemp("secure")
    made = [make_certificate(folder, name) for name in ("own", "another")]
    (folder / "token").write_text(TOKEN)
    overlay = {
        "COLLECTOR_TLS_CERT": str(made[0].file),
        "COLLECTOR_TLS_KEY": str(made[0].key),
        "COLLECTOR_TOKEN_FILE": str(folder / "token"),
    }
    ports = dataclasses.replace(free_ports(), jaeger_otlp_grpc_port=stack.ports.jaeger_otlp_grpc_port)
    with Running(collector(binaries, folder, ports, overlay)):
        yield Secure(ports, *made)


@pytest.fixture(scope="module")
def ended_run(stack: Stack, tmp_path_factory: pytest.TempPathFactory, tapes: Path) -> Path:
    """The tapes of a job that is over."""
    before = set(tapes.glob("job-*"))
    log = tmp_path_factory.mktemp("job") / "log"
    arguments = {
        "otlp": stack.addresses.otlp,
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
    }
    with running_job("steady.py", STEPS, 0.01, tapes=tapes, log=log, **arguments) as job:
        assert job.wait(60) == 0, log.read_text()
    [made] = set(tapes.glob("job-*")) - before
    return made


def export(run: Path, endpoint: str, **more: str) -> str:
    """Have an agent export a run that is over; returns what it says."""
    # requests takes these for its certificates, before those that it is told.
    others = {"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": ""}
    environment = training_environment(endpoint, run.parent, 10.0) | others | more
    done = subprocess.run(
        [Path(sys.executable).parent / "otel-torchdist", "agent", "--run-dir", run, "--again"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


CASES = {
    "grpc-to-http": ("http", "collector_otlp_http_port", {}, "that port speaks HTTP: OTEL_EXPORTER_OTLP_PROTOCOL"),
    "http-to-grpc": ("http", "collector_otlp_grpc_port", HTTP, "that port may speak gRPC"),
    "tls-to-plain": ("https", "collector_otlp_grpc_port", {}, "that port does not speak TLS: name it with http://"),
    "tls-to-plain-http": ("https", "collector_otlp_http_port", HTTP, "that port does not speak TLS"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wrong_protocol_is_named(case: tuple[str, str, dict[str, str], str], stack: Stack, ended_run: Path) -> None:
    """One warning says where spans were to go and what is probably wrong; the agent ends as ever."""
    scheme, port, more, hint = case
    endpoint = f"{scheme}://{HOST}:{getattr(stack.ports, port)}"
    told = [line for line in export(ended_run, endpoint, **more).splitlines() if "cannot be exported (" in line]
    assert len(told) == 1
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint})" in told[0]
    assert hint in told[0]


def test_endpoint_that_is_down(ended_run: Path) -> None:
    """Where nobody listens that is what is said, and how many spans are lost by it."""
    said = export(ended_run, f"http://{HOST}:{free_ports().webhook_port}")
    assert "Connection refused" in said
    assert "(nobody listens there)" in said
    assert "spans could not be exported" in said


SECURE_CASES = {
    "plain": ("http", "", "", {}, "that port may ask for TLS"),
    "plain-http": ("http", "", "", HTTP, "or ask for TLS (https://)"),
    "not-trusted": ("https", "another", TOKEN, {}, "OTEL_EXPORTER_OTLP_CERTIFICATE must name"),
    "not-trusted-http": ("https", "another", TOKEN, HTTP, "OTEL_EXPORTER_OTLP_CERTIFICATE must name"),
    "no-token": ("https", "certificate", "", {}, "OTEL_EXPORTER_OTLP_HEADERS must bring a token"),
    "wrong-token": ("https", "certificate", "sun-1", {}, "OTEL_EXPORTER_OTLP_HEADERS must bring a token"),
    "wrong-token-http": ("https", "certificate", "sun-1", HTTP, "OTEL_EXPORTER_OTLP_HEADERS must bring a token"),
    "right": ("https", "certificate", TOKEN, {}, ""),
    "right-http": ("https", "certificate", TOKEN, HTTP, ""),
}


@pytest.mark.parametrize("case", SECURE_CASES.values(), ids=SECURE_CASES)
def test_tls_and_token(case: tuple[str, str, str, dict[str, str], str], secure: Secure, ended_run: Path) -> None:
    """Without the right certificate and token nothing passes, and it is said which; with them everything does."""
    scheme, certificate, token, more, hint = case
    port = secure.ports.collector_otlp_http_port if more else secure.ports.collector_otlp_grpc_port
    if certificate:
        more = more | {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(getattr(secure, certificate).file)}
    if token:
        more = more | {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{token}"}
    said = export(ended_run, f"{scheme}://{HOST}:{port}", **more)
    assert ("could not be exported" in said) == bool(hint), said
    assert hint in said


def test_pushed_metrics_are_scraped_over_tls(
    secure: Secure, binaries: Path, stack: Stack, tapes: Path, tmp_path: Path
) -> None:
    """Prometheus' example takes what a job has pushed from a Collector that asks for TLS and a token."""
    home = tmp_path / "prometheus"
    scrapes = home / "scrapes"
    (scrapes / "targets").mkdir(parents=True)
    shutil.copy(DEPLOY / "prometheus" / "examples" / "secure.yaml", scrapes)
    shutil.copy(secure.certificate.file, scrapes / "collector-ca.crt")
    (scrapes / "collector-token").write_text(TOKEN)
    target = f'[{{"targets": ["{HOST}:{secure.ports.collector_prometheus_port}"]}}]'
    (scrapes / "targets" / "secure.json").write_text(target)
    with Stack(binaries, tmp_path, free_ports(), tmp_path / "no-tapes") as other:
        more = HTTP | {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(secure.certificate.file),
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
            "REQUESTS_CA_BUNDLE": "",
            "CURL_CA_BUNDLE": "",
        }
        otlp = f"https://{HOST}:{secure.ports.collector_otlp_http_port}"
        with running_job("steady.py", 100, 0.2, otlp=otlp, tapes=tapes, log=tmp_path / "log", **more):
            deadline = time.monotonic() + 40
            while len(other.metrics.query("torchdist_up == 1")) < RANKS:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.5)
        [up] = other.metrics.query('up{job="torchdist-collector-secure"}')
    assert up.value == 1
