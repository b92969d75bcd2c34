"""The servers of the stack. They use the same configuration files as the containers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.native.ports import HOST, Ports
from deploy.native.program import Program

DEPLOY: Final = Path(__file__).resolve().parents[1]
BINARIES: Final = ("jaeger", "otelcol-torchdist", "prometheus", "promtool", "alertmanager", "amtool")


def cache_folder() -> Path:
    """Return this project's directory in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-torchdist"


def stack_binaries() -> Path | None:
    """Return the directory of the servers that `make stack` has built; None if one of them is missing."""
    folder = cache_folder() / "stack" / "bin"
    return folder if all((folder / name).is_file() for name in BINARIES) else None


def jaeger(binaries: Path, home: Path, ports: Ports) -> Program:
    """Configure Jaeger, with its storage in `home`."""
    return Program(
        "jaeger",
        (binaries / "jaeger", "--config", f"file:{DEPLOY / 'jaeger' / 'config.yaml'}"),
        home,
        f"http://{HOST}:{ports.jaeger_health_port}/status",
        ports.environment | {"JAEGER_HOST": HOST, "JAEGER_DATA": str(home)},
    )


def collector(binaries: Path, home: Path, ports: Ports, overlay: Mapping[str, str] | None = None) -> Program:
    """Configure the Collector, which forwards spans to Jaeger.

    Args:
        binaries: Directory that `make stack` has built.
        home: Its working directory.
        ports: Ports of the stack.
        overlay: Variables for `secure.yaml`, which requires TLS and a token; None for neither.
    """
    configs = ["config.yaml"] if overlay is None else ["config.yaml", "secure.yaml"]
    arguments = [argument for name in configs for argument in ("--config", str(DEPLOY / "collector" / name))]
    return Program(
        "collector",
        (binaries / "otelcol-torchdist", *arguments),
        home,
        f"http://{HOST}:{ports.collector_metrics_port}/metrics",
        ports.environment
        | {"COLLECTOR_HOST": HOST, "JAEGER_OTLP_ENDPOINT": f"{HOST}:{ports.jaeger_otlp_grpc_port}"}
        | dict(overlay or {}),
    )


def prometheus(binaries: Path, home: Path, ports: Ports, tapes: Path) -> Program:
    """Configure Prometheus, which scrapes the agents of all jobs with tapes in `tapes`."""
    # Paths in the configuration are relative to its directory, so the files are linked into a new directory.
    home.mkdir(parents=True, exist_ok=True)
    for name in ("prometheus.yml", "rules"):
        _link(home / name, DEPLOY / "prometheus" / name)
    targets = home / "targets"
    targets.mkdir(exist_ok=True)
    _link(targets / "torchdist", tapes / "prometheus")
    _write_target(targets / "alertmanager", ports.alertmanager_port)
    _write_target(targets / "collector", ports.collector_prometheus_port)
    return Program(
        "prometheus",
        (
            binaries / "prometheus",
            f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}",
            "--storage.tsdb.retention.time=7d",
            f"--web.listen-address={HOST}:{ports.prometheus_port}",
            "--enable-feature=exemplar-storage",
        ),
        home,
        f"http://{HOST}:{ports.prometheus_port}/-/ready",
        {"JAEGER_URL": f"http://{HOST}:{ports.jaeger_query_port}"},
    )


def alertmanager(binaries: Path, home: Path, ports: Ports) -> Program:
    """Configure Alertmanager, which notifies the webhook."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "webhook-url").write_text(f"http://{HOST}:{ports.webhook_port}/")
    return Program(
        "alertmanager",
        (
            binaries / "alertmanager",
            f"--config.file={DEPLOY / 'alertmanager' / 'alertmanager.yml'}",
            f"--storage.path={home / 'data'}",
            f"--web.listen-address={HOST}:{ports.alertmanager_port}",
            "--cluster.listen-address=",
        ),
        home,
        f"http://{HOST}:{ports.alertmanager_port}/-/ready",
    )


def webhook(home: Path, ports: Ports) -> Program:
    """Configure the webhook, which receives Alertmanager's messages instead of a chat or pager."""
    return Program(
        "webhook",
        (sys.executable, "-m", "deploy.native.webhook", str(ports.webhook_port), home / "alerts.jsonl"),
        home,
        f"http://{HOST}:{ports.webhook_port}/",
        {"PYTHONPATH": str(DEPLOY.parent)},
    )


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _write_target(folder: Path, port: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "native.json").write_text(json.dumps([{"targets": [f"{HOST}:{port}"]}]))
