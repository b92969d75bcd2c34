"""Real jobs of two ranks over NCCL, under torchrun as users start it: results, spans, and verdicts on real hangs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.running import environment, kill_processes_of, processes_of
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.repository import REPOSITORY
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "two_ranks.py"
THRESHOLD_S = 2.0
JOB_S = 100.0
LOOKING = {
    "OTEL_PYTHON_TORCHDIST_NUMERICS": "all",
    "OTEL_PYTHON_TORCHDIST_NUMERICS_EVERY": "1",
    "OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS": "2",
}
OTHERS = 2
"""Collectives that the worker issues after its trainings."""
NO_COLLECTIVES = {"send", "recv", "init_process_group", "new_group", "backward", "optimizer step"}


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes:
        code: Exit code of torchrun.
        log: What it and its ranks have printed.
        spans: What was exported; the attributes by name, without our prefix.
    """

    code: int
    log: str
    spans: list[dict[str, Any]]

    def found(self, pattern: str) -> set[tuple[str, ...]]:
        """The groups of all matches in the log."""
        return {found.groups() for found in re.finditer(pattern, self.log)}


def run(fault: str = "none", until_logged: str = "", **environ: str) -> Ended:
    """Run the worker, to its end or until something is logged, and its agent until it has exported everything."""
    with memory_directory() as base:
        exported, log = base / "spans.json", base / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", WORKER, fault],
                env=environment(base)
                | {
                    "PYTHONPATH": f"{REPOSITORY}:{environment(base).get('PYTHONPATH', '')}",
                    "OTEL_TRACES_EXPORTER": "torchdist_otlp_json",
                    "OTEL_METRICS_EXPORTER": "none",
                    "OTEL_LOGS_EXPORTER": "none",
                    "OTEL_PYTHON_TORCHDIST_OTLP_FILE": str(exported),
                    "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(round(THRESHOLD_S * 1000)),
                    "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
                    **environ,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            until(
                lambda: process.poll() is not None or (until_logged and until_logged in log.read_text()),
                JOB_S,
                log.read_text,
            )
            process.terminate()
            until(lambda: not processes_of(base), JOB_S, log.read_text)
        finally:
            kill_processes_of(base)
        return Ended(process.wait(), log.read_text(), list(_spans(exported)))


def _spans(exported: Path) -> Iterator[dict[str, Any]]:
    for line in exported.read_text().splitlines() if exported.exists() else ():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    named = {one["key"].removeprefix("torchdist."): one["value"] for one in span["attributes"]}
                    yield {**span, **{name: next(iter(value.values())) for name, value in named.items()}}


@pytest.fixture(scope="module")
def bare() -> Ended:
    """The job without us."""
    return run()


@pytest.mark.parametrize("kernel", [*KERNELS, "looking"])
def test_results_and_spans(bare: Ended, kernel: str) -> None:
    """Results are bit-identical, NCCL has counted as many collectives as there are spans, and each span came once."""
    job = run(OTEL_PYTHON_TORCHDIST_ENABLED="true", **(LOOKING if kernel == "looking" else environ_of(kernel)))
    assert (bare.code, job.code) == (0, 0), job.log
    digests = r"rank (\d) digest (\w+) counted (\d+)"
    assert len(bare.found(digests)) == 2
    assert job.found(digests) == bare.found(digests)
    assert "stall: " not in job.log
    assert "finding: " not in job.log
    ids = Counter(span["spanId"] for span in job.spans)
    assert set(ids.values()) == {1}
    assert {span["parentSpanId"] for span in job.spans if span.get("parentSpanId")} <= ids.keys()
    for rank, _, counted in job.found(digests):
        collectives = [
            span
            for span in job.spans
            if span.get("rank") == rank and span.get("operation", "backward") not in NO_COLLECTIVES
        ]
        assert len(collectives) == int(counted) + OTHERS
        assert {span["completion"] for span in collectives} <= {"event", "watchdog"}
        assert not [span["name"] for span in collectives if "device.duration" not in span]


@pytest.mark.parametrize(
    ("fault", "ranks", "sentence"),
    [
        ("absent", "1", r"rank 1 has not entered all_reduce .* it is in go_wrong at two_ranks\.py:\d+"),
        ("device", "1", r"rank 1 has enqueued all_reduce .* but its device has not reached it"),
        ("mismatched", "0-1", r"rank 0 has all_reduce, rank 1 has all_gather_into_tensor"),
        ("dead", "1", r"rank 1 was killed by SIGKILL"),
    ],
)
def test_verdicts(fault: str, ranks: str, sentence: str) -> None:
    """What a rank does to the others is reported as a stall that names it and says why."""
    job = run(fault, until_logged="stall: ", OTEL_PYTHON_TORCHDIST_ENABLED="true")
    stalls = [span for span in job.spans if span["name"].startswith("stall: ")]
    assert {(span["verdict"], span["ranks"]) for span in stalls} == {(fault, ranks)}, job.log
    assert re.search(sentence, stalls[0]["status"]["message"])
