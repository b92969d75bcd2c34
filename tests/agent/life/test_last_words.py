"""What an agent knows when its container ends has been pushed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.training import environment
from tests.jobs.torchrun.test_torchrun import WORKERS
from tests.support.receivers.otlp_metrics_receiver import http_receiver
from tests.support.receivers.otlp_receiver import OtlpReceiver

NAMESPACES = shutil.which("unshare") and not subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode
AN_HOUR_MS = 3_600_000
FIRST_PROCESS = ["sh", "-c", '"$@"; sleep 2', "sh", sys.executable, "-m", "torch.distributed.run"]


@pytest.mark.thorough
@pytest.mark.skipif(not NAMESPACES, reason="this user cannot make PID namespaces")
def test_verdict_leaves_a_container(base: Path, receiver: OtlpReceiver) -> None:
    """The agent is killed with the first process of the container, an hour before the next interval."""
    with http_receiver() as metrics:
        environ = environment(base, receiver) | {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{metrics.endpoint}/v1/metrics",
            "OTEL_METRIC_EXPORT_INTERVAL": str(AN_HOUR_MS),
        }
        job = ["--standalone", "--nproc-per-node=2", str(WORKERS / "crashes.py"), "1"]
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *FIRST_PROCESS, *job]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert metrics.wait(), done.stderr
        received = metrics.metrics()
        [ended] = received["torchdist.attempt_ended.info"].gauge.data_points
        found = {one.key: one.value.string_value for one in ended.attributes}
        assert (found["torchdist.verdict"], found["torchdist.ranks"]) == ("dead", "1")
        names = {span.name for span in receiver.spans()}
        assert "stall: all_reduce (dead)" in names
