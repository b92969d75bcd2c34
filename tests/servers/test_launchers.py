"""A job that hangs, started by each launcher: what its users find in Jaeger, and the alert that links to it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deploy.native.ports import free_port
from deploy.native.prometheus_api import Alert
from deploy.native.stack import Stack
from otel_torchdist.telemetry import semconv
from tests.launchers.ray.running import EXAMPLE, ray_cluster
from tests.launchers.started import EXAMPLES, PYTHON, StartedJob, line_of, needs, program
from tests.support.receivers.forwarder import forwarded
from tests.support.slurm.cluster import slurm_cluster
from tests.support.slurm.jobs import submit
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]
PATIENCE_S: Final = 120.0
LATE: Final = ("--late-rank", "1", "--late-s", "900")
AT_LATE: Final = "time.sleep(late_s)"


@dataclass(frozen=True)
class Site:
    """Where jobs are started.

    Attributes:
        stack: The servers.
        tapes: The base directory of tapes, where Prometheus finds agents.
        folder: The working directory of jobs.
        closing: Closed at the end of the test.
    """

    stack: Stack
    tapes: Path
    folder: Path
    closing: contextlib.ExitStack

    def start(self, *command: str | Path, **environ: str) -> StartedJob:
        """Start a launcher, which is ended after the test."""
        job = StartedJob(command, self.tapes, self.stack.addresses.otlp, "grpc", environ, self.folder)
        self.closing.callback(job.close)
        return job


@pytest.fixture
def site(stack: Stack, tapes: Path, tmp_path: Path) -> Iterator[Site]:
    """The servers, and a directory for jobs."""
    with contextlib.ExitStack() as closing:
        yield Site(stack, tapes, tmp_path, closing)


def torchrun(site: Site, service: str) -> str:
    """Start ranks by torchrun; returns the line of the late rank."""
    train = EXAMPLES / "elastic" / "train.py"
    site.start(program("torchrun"), "--standalone", "--nproc-per-node=2", train, *LATE, OTEL_SERVICE_NAME=service)
    return line_of(train, "time.sleep(late_s)")


def mpirun(site: Site, service: str) -> str:
    """The same by Open MPI."""
    train = EXAMPLES / "mpirun" / "train.py"
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    options = (*as_root, "--oversubscribe", "-np", "2", "-x", "MASTER_PORT")
    environ = {"MASTER_PORT": str(free_port()), "OTEL_SERVICE_NAME": service}
    site.start(program("mpirun"), *options, PYTHON, train, *LATE, **environ)
    return line_of(train, AT_LATE)


def accelerate(site: Site, service: str) -> str:
    """The same by Accelerate."""
    needs("accelerate")
    train = EXAMPLES / "accelerate" / "train.py"
    options = ("--num_processes", "2", "--num_machines", "1", "--main_process_port", str(free_port()))
    site.start(program("accelerate"), "launch", "--multi_gpu", *options, train, *LATE, OTEL_SERVICE_NAME=service)
    return line_of(train, AT_LATE)


def lightning(site: Site, service: str) -> str:
    """The same by Lightning's own launcher."""
    needs("lightning")
    train = EXAMPLES / "lightning" / "train.py"
    site.start(PYTHON, train, "--strategy", "ddp", *LATE, OTEL_SERVICE_NAME=service)
    return line_of(train, "time.sleep(self.late_s)")


def notebook(site: Site, service: str) -> str:
    """The same from a cell of a notebook; its lines are counted in the cell."""
    needs("accelerate")
    source = EXAMPLES / "notebook" / "training.ipynb"
    environ = {"LATE_RANK": "1", "LATE_S": "900", "NOTEBOOK_PORT": str(free_port()), "OTEL_SERVICE_NAME": service}
    (site.folder / source.name).write_bytes(source.read_bytes())
    site.start(program("jupyter"), "execute", site.folder / source.name, **environ)
    cells = ["".join(cell["source"]) for cell in json.loads(source.read_text())["cells"]]
    cell = next(cell for cell in cells if AT_LATE in cell)
    return f".py:{next(number for number, line in enumerate(cell.splitlines(), 1) if AT_LATE in line)}"


def ray(site: Site, service: str) -> str:
    """The same by Ray Train."""
    cluster = site.closing.enter_context(ray_cluster())
    environ = cluster.environ | {"RAY_ADDRESS": cluster.address, "OTEL_SERVICE_NAME": service}
    site.start(PYTHON, EXAMPLE, "--storage", cluster.folder / "results", "--hang", "900", **environ)
    return line_of(EXAMPLE, "time.sleep(config")


def slurm(site: Site, service: str) -> str:
    """The same by srun, on two nodes that reach no more than the Collector: they push their metrics."""
    cluster = site.closing.enter_context(slurm_cluster())
    port = site.closing.enter_context(forwarded(cluster.nodes.outside, site.stack.ports.collector_otlp_http_port))
    environ = {
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{cluster.nodes.outside}:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "2000",
    }
    command = "srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID"
    where = '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
    train = EXAMPLES / "elastic" / "train.py"
    submit(cluster, "hanging", f"{command} {where} {train} {' '.join(LATE)}", "-N2", "-n2", environ=environ)
    return line_of(train, AT_LATE)


@pytest.mark.parametrize("launched", [torchrun, mpirun, accelerate, lightning, notebook, ray, slurm])
def test_hang_is_found(site: Site, launched: Callable[[Site, str], str]) -> None:
    """The alert names the rank, and leads to the stall in Jaeger, which the search by the verdict finds as well."""
    service = f"training-{launched.__name__}"
    known = {alert.labels["run"] for alert in site.stack.alerts.alerts() if "run" in alert.labels}
    late_line = launched(site, service)

    alert = until(lambda: _alert(site.stack, known), PATIENCE_S)
    assert alert.annotations["verdict"] == "absent"
    assert alert.annotations["ranks"] == "1"
    _, _, trace_id = alert.annotations["trace"].rpartition("/trace/")

    stall = until(lambda: site.stack.traces.trace(trace_id), PATIENCE_S)
    root = next(span for span in stall if not span.parent_id)
    assert (root.name, root.resource["service.name"]) == ("stall: all_reduce (absent)", service)
    assert root.tags["torchdist.run"] == alert.labels["run"]
    assert late_line in root.tags["otel.status_description"]
    assert (root.tags[semconv.VERDICT_RANKS], root.tags[semconv.VERDICT_COVERAGE]) == ("1", "2/2")
    found = site.stack.traces.find(service, {"torchdist.verdict": "absent"})
    assert trace_id in {span.trace_id for trace in found for span in trace}
    # The bar of the rank that waits, in the trace of its step.
    steps = site.stack.traces.find(service, {"torchdist.stalled": "true"})
    waiting = [span for trace in steps for span in trace if span.name.endswith("(in progress)")]
    assert {span.tags["torchdist.rank"] for span in waiting} == {0}


def _alert(stack: Stack, known: set[str]) -> Alert | None:
    """The alert of a stall of another run than these, as Alertmanager has it."""
    stalls = [alert for alert in stack.alerts.alerts() if alert.name == "TorchdistStalled" and alert.is_active]
    return next((alert for alert in stalls if alert.labels["run"] not in known), None)
