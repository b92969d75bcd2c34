"""A death in a job whose agent does not linger: it ends with the last rank, and must have reported the death before."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.running import environment, kill_processes_of, processes_of
from tests.support.native.native_library import KERNELS, environ_of, simulated_library
from tests.support.repository import REPOSITORY
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import until

WORKER = Path(__file__).parent / "on_device.py"
JOB_S = 120.0
DEATH = re.compile(
    r"rank 1 was killed by SIGKILL( [\d.]+ m?s before the others ended)?, and all_reduce \(sequence 82, default_pg\)"
)


def stalls_of(kernel: str) -> list[dict[str, Any]]:
    """Run the job until its last process has ended. Return the stalls that were exported."""
    with memory_directory() as base:
        exported, log = base / "spans.json", base / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
                    *(str(WORKER), str(simulated_library())),
                ],
                env=environment(base)
                | environ_of(kernel)
                | {
                    "GLOO_SOCKET_IFNAME": "lo",
                    "PYTHONPATH": str(REPOSITORY),
                    "OTEL_TRACES_EXPORTER": "torchdist_otlp_json",
                    "OTEL_METRICS_EXPORTER": "none",
                    "OTEL_LOGS_EXPORTER": "none",
                    "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
                    "OTEL_PYTHON_TORCHDIST_OTLP_FILE": str(exported),
                    "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "20000",
                    "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            assert process.wait(JOB_S) == 1, log.read_text()
            until(lambda: not processes_of(base), JOB_S, log.read_text)
        finally:
            kill_processes_of(base)
            process.wait()
        lines = exported.read_text().splitlines() if exported.exists() else []
        spans = [
            span
            for line in lines
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        stalls = [span for span in spans if span["name"].startswith("stall: ")]
        assert stalls, log.read_text()
        return stalls


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", KERNELS)
def test_death_is_reported_by_an_agent_that_ends(kernel: str) -> None:
    """The rank that was killed is named once, although the other ends with it and nothing keeps the agent."""
    sentences = [span["status"].get("message", "") for span in stalls_of(kernel)]
    deaths = [sentence for sentence in sentences if DEATH.match(sentence)]
    assert len(deaths) == 1, sentences
    assert [sentence for sentence in sentences if not sentence.startswith(("rank 1", "all ranks that waited"))] == []
