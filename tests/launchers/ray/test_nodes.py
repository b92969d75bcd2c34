"""A training on two nodes of Ray, submitted by `ray job submit`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.launchers.ray.nodes import DASHBOARD, RAY, ray_nodes
from tests.launchers.ray.running import EXAMPLE, without_colours
from tests.launchers.started import line_of

pytestmark = [pytest.mark.thorough, pytest.mark.rare, pytest.mark.timeout(900)]
COMMAND = Path(sys.executable).with_name("otel-torchdist")


def test_submitted_job_on_two_nodes() -> None:
    """The job's log has one verdict, with both lines; the command below it works on the node that it names."""
    ours = {"OTEL_PYTHON_TORCHDIST_ENABLED": "true", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    with ray_nodes() as cluster:
        submit = (RAY, "job", "submit", "--address", DASHBOARD, "--submission-id", "pretrain-7")
        variables = ("--working-dir", EXAMPLE.parent, "--runtime-env-json", json.dumps({"env_vars": ours}))
        train = (sys.executable, EXAMPLE.name, "--hang", "25", "--storage", cluster.folder / "results")
        output = without_colours(cluster.run(0, *submit, *variables, "--", *train))
        assert "Job 'pretrain-7' succeeded" in output

        [verdict] = re.findall(r"otel_torchdist: (rank .*)", output)
        assert verdict.startswith("rank 1 has not entered all_reduce (DDP bucket 0, sequence ")
        assert f"it is in load_batch at {line_of(EXAMPLE, 'time.sleep(config')}; 1 of 2 ranks waits in " in verdict
        assert "stall over: all_reduce (DDP bucket 0, " in output
        [(run, directory, node)] = re.findall(
            r"details: otel-torchdist diagnose (\w+) --run-dir (\S+) \(on (r\d)\)", output
        )
        shown = cluster.run(int(node[1:]) - 1, COMMAND, "diagnose", run, "--run-dir", directory)
        assert "Ray job pretrain-7, training example\n" in shown
        for index in (0, 1):
            listed = cluster.run(index, COMMAND, "diagnose", "--list")
            assert re.search(rf"{run} .* finished +\d +2 ", listed), listed
