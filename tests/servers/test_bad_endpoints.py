"""Endpoints that are down, speak another protocol, or want TLS and a token: what the log reports, with real servers."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.native.ports import HOST, Ports, free_ports
from deploy.native.program import Running
from deploy.native.servers import DEPLOY, collector
from deploy.native.stack import Stack
from deploy.native.training import training_environment
from tests.servers.certificates import Certificate, make_certificate
from tests.servers.jobs import RANKS, running_job
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import until

TOKEN = "moon-7"
STEPS = 10
HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


@dataclass(frozen=True)
class Secure:
    """A Collector that requires TLS and a token, beside the stack's own.

    Attributes:
        ports: Its ports.
        certificate: Its certificate.
        another: A certificate that it does not have.
    """

    ports: Ports
    certificate: Certificate
    another: Certificate


@pytest.fixture(scope="module")
def secure(binaries: Path, stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """A Collector with `secure.yaml` on top of the usual configuration."""
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
def own_tapes() -> Iterator[Path]:
    """For tapes of which the shared Prometheus knows nothing: it would discover the jobs at any later time."""
    with memory_directory() as path:
        yield path


@pytest.fixture(scope="module")
def ended_run(warm_python: WarmPython, stack: Stack, own_tapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tapes of a job that is over."""
    folder = tmp_path_factory.mktemp("job")
    arguments = {
        "otlp": stack.addresses.otlp,
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
    }
    with running_job(warm_python, folder, "steady.py", STEPS, 0.01, tapes=own_tapes, **arguments) as job:
        assert job.wait(60) == 0, job.log
    [made] = own_tapes.glob("job-*")
    return made


def export(run: Path, endpoint: str, **more: str) -> str:
    """Have an agent export a run that is over; returns its output."""
    # requests prefers these certificates over those it is given.
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


@dataclass(frozen=True)
class Case:
    """An agent that exports to some endpoint.

    Attributes:
        scheme: Scheme of the endpoint.
        port: Field of `Ports`.
        more: Other variables.
        hint: Text that it must log; '' when all must be well.
        certificate: The certificate of `Secure` that it trusts; '' for an endpoint without TLS.
        token: The token that it sends.
    """

    scheme: str
    port: str
    hint: str
    more: dict[str, str] = field(default_factory=dict[str, str])
    certificate: str = ""
    token: str = ""


GRPC_PORT, HTTP_PORT = "collector_otlp_grpc_port", "collector_otlp_http_port"
NOT_TRUSTED = "OTEL_EXPORTER_OTLP_CERTIFICATE must name"
NO_TOKEN = "OTEL_EXPORTER_OTLP_HEADERS must contain a token"
PLAIN = {
    "no process": Case("http", "webhook_port", "no process listens there"),
    "grpc-to-http": Case("http", HTTP_PORT, "that port speaks HTTP: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
    "http-to-grpc": Case("http", GRPC_PORT, "that port may speak gRPC", HTTP),
    "tls-to-plain": Case("https", GRPC_PORT, "that port does not speak TLS: use http://"),
    "tls-to-plain-http": Case("https", HTTP_PORT, "that port does not speak TLS", HTTP),
}
SECURE = {
    "plain": Case("http", GRPC_PORT, "that port may require TLS"),
    "plain-http": Case("http", HTTP_PORT, "or require TLS (https://)", HTTP),
    "not-trusted": Case("https", GRPC_PORT, NOT_TRUSTED, {}, "another", TOKEN),
    "not-trusted-http": Case("https", HTTP_PORT, NOT_TRUSTED, HTTP, "another", TOKEN),
    "no-token": Case("https", GRPC_PORT, NO_TOKEN, {}, "certificate"),
    "wrong-token": Case("https", GRPC_PORT, NO_TOKEN, {}, "certificate", "sun-1"),
    "wrong-token-http": Case("https", HTTP_PORT, NO_TOKEN, HTTP, "certificate", "sun-1"),
    "right": Case("https", GRPC_PORT, "", {}, "certificate", TOKEN),
    "right-http": Case("https", HTTP_PORT, "", HTTP, "certificate", TOKEN),
}


@pytest.fixture(scope="module")
def said(stack: Stack, secure: Secure, ended_run: Path) -> dict[str, str]:
    """The output of each case's agent; they spend most of their time waiting, so several run at once."""
    unused = free_ports()

    def run(name: str) -> str:
        case = PLAIN.get(name) or SECURE[name]
        ports = unused if case.port == "webhook_port" else stack.ports if name in PLAIN else secure.ports
        more = dict(case.more)
        if case.certificate:
            more["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(getattr(secure, case.certificate).file)
        if case.token:
            more["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer%20{case.token}"
        # An agent of its own for the same tapes: a copy in a base directory of its own, where no other agent cleans.
        base = ended_run.parent.with_name(f"base-{zlib.crc32(name.encode()):08x}")
        base.mkdir(0o700)
        copied = base / ended_run.name
        shutil.copytree(ended_run, copied)
        return export(copied, f"{case.scheme}://{HOST}:{getattr(ports, case.port)}", **more)

    names = [*PLAIN, *SECURE]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(names, pool.map(run, names), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLAIN)
def test_wrong_endpoint_is_named(name: str, said: dict[str, str]) -> None:
    """One warning names the endpoint and the probable fault, and how many spans are lost by it at the end."""
    reported = [line for line in said[name].splitlines() if "cannot be exported (" in line]
    assert len(reported) == 1, said[name]
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={PLAIN[name].scheme}://{HOST}:" in reported[0]
    assert PLAIN[name].hint in reported[0]
    assert "spans could not be exported" in said[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", SECURE)
def test_tls_and_token(name: str, said: dict[str, str]) -> None:
    """Without the right certificate and token nothing passes, and the log names which; with them everything does."""
    hint = SECURE[name].hint
    assert ("could not be exported" in said[name]) == bool(hint), said[name]
    assert hint in said[name]


@pytest.mark.thorough
def test_pushed_metrics_are_scraped_over_tls(
    secure: Secure, binaries: Path, stack: Stack, warm_python: WarmPython, own_tapes: Path, tmp_path: Path
) -> None:
    """Prometheus' example scrapes what a job has pushed from a Collector that requires TLS and a token."""
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
            "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(secure.certificate.file),
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
            "REQUESTS_CA_BUNDLE": "",
            "CURL_CA_BUNDLE": "",
        }
        otlp = f"https://{HOST}:{secure.ports.collector_otlp_http_port}"
        with running_job(warm_python, tmp_path, "steady.py", 10_000, 0.2, otlp=otlp, tapes=own_tapes, **more) as job:
            until(lambda: len(other.metrics.query("torchdist_up == 1")) >= RANKS, what=lambda: job.log)
        [up] = other.metrics.query('up{job="torchdist-collector-secure"}')
        other.jaeger.stop(signal.SIGKILL)  # as that of the shared stack
    assert up.value == 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["right", "right-http", "no-certificate", "wrong-token"])
def test_tls_and_token_in_a_file(name: str, secure: Secure, ended_run: Path, tmp_path: Path) -> None:
    """Certificate and token in OTEL_CONFIG_FILE reach a real Collector; a wrong one is reported, and nothing passes."""
    is_http = name.endswith("http")
    port = secure.ports.collector_otlp_http_port if is_http else secure.ports.collector_otlp_grpc_port
    certificate = secure.another if name == "no-certificate" else secure.certificate
    file = tmp_path / "otel.yaml"
    file.write_text(f"""
file_format: "1.0"
tracer_provider:
  processors:
    - batch:
        exporter:
          {"otlp_http" if is_http else "otlp_grpc"}:
            endpoint: https://{HOST}:{port}{"/v1/traces" if is_http else ""}
            compression: gzip
            headers:
              - name: authorization
                value: Bearer ${{TOKEN}}
            tls:
              ca_file: {certificate.file}
""")
    base = ended_run.parent.with_name(f"base-{zlib.crc32(str(tmp_path).encode()):08x}")
    base.mkdir(0o700)
    shutil.copytree(ended_run, base / ended_run.name)
    token = "sun-1" if name == "wrong-token" else TOKEN
    said = export(base / ended_run.name, "http://127.0.0.1:1", OTEL_CONFIG_FILE=str(file), TOKEN=token)
    assert ("could not be exported" in said) == (not name.startswith("right")), said
    assert (f"cannot be exported (OTEL_CONFIG_FILE={file}: otlp_" in said) == (not name.startswith("right")), said
