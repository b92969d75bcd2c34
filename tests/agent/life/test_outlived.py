"""The evidence that is left when a job, its agent and its tapes are gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.agent.life.test_killed import NAMESPACES
from tests.agent.training import Training
from tests.support.commands.asking import ask
from tests.support.commands.running import SCRIPT, environment
from tests.support.waiting import until

UPTIME_S = float(Path("/proc/uptime").read_text().split()[0])
CLOCK_S = 5
"""Reading of the other machine's monotonic clock when it begins."""


def on_another_machine(base: Path, arguments: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a command where no process, host name, or time of the monotonic clock is that of this machine."""
    offset_s = CLOCK_S - int(UPTIME_S)
    namespaces = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--time", f"--monotonic={offset_s}"]
    script = 'hostname elsewhere; exec "$@"'
    command = [*namespaces, "sh", "-c", script, "sh", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, env=environment(base), capture_output=True, text=True, check=False, timeout=120)


def without_durations(text: str) -> str:
    """A sentence without the times that pass between two looks at the same hang."""
    return re.sub(r"\d[\d.]* (ms|s|min)\b", "N", text)


def bundles_in(folder: Path, reason: str) -> list[Path]:
    """The bundles written for a reason."""
    return sorted(folder.glob(f"torchdist-bundle-*-{reason}-*.tar.gz"))


@pytest.mark.thorough
@pytest.mark.skipif(not NAMESPACES, reason="needs namespaces of its own")
def test_pod_is_gone(train: Callable[..., Training], base: Path, tmp_path: Path) -> None:
    """A bundle written in a stall gives the same verdict and lines after everything else of the job is gone."""
    folder = tmp_path / "bundles"
    training = train(environ={"OTEL_PYTHON_TORCHDIST_BUNDLES": str(folder)})
    training.joined_at()
    training.stall()
    [path] = until(lambda: bundles_in(folder, "verdict"))
    live = ask(base, "--json", threshold_s=2.0).document
    assert bundles_in(folder, "verdict") == [path]
    for agent in training.agents():
        os.kill(agent, signal.SIGKILL)
    training.close()
    shutil.rmtree(base)
    copy = tmp_path / "a copy of it.tar.gz"
    shutil.copy(path, copy)
    shutil.rmtree(folder)
    base.mkdir(0o700)
    done = on_another_machine(base, ["diagnose", "--json", "--threshold", "2", copy])
    assert (done.returncode, done.stderr) == (1, "")
    bundled = json.loads(done.stdout)
    assert bundled["run"]["directory"] == str(copy)
    assert bundled["run"]["host"] == os.uname().nodename
    names = ("kind", "ranks", "operation", "sequence")
    assert [bundled["verdict"][name] for name in names] == [live["verdict"][name] for name in names]
    assert without_durations(bundled["verdict"]["sentence"]) == without_durations(live["verdict"]["sentence"])
    assert "steps.py" in bundled["verdict"]["sentence"]
    assert [rank["life"] for rank in bundled["ranks"]] == ["running"] * 2
    calls = on_another_machine(base, ["analyze", "--only", "calls", "--csv", copy])
    assert calls.returncode == 0, calls.stderr
    assert "all_reduce" in calls.stdout
    assert not [path for path in Path("/tmp").glob("otel-torchdist-bundle-*") if path.stat().st_mtime > time.time() - 5]


@pytest.mark.thorough
@pytest.mark.skipif(not NAMESPACES, reason="needs namespaces of its own")
def test_container_of_a_launcher(base: Path, tmp_path: Path) -> None:
    """If torchrun is a container's first process, a crash leaves its bundle before the container and its agent end."""
    folder = tmp_path / "bundles"
    script = tmp_path / "crash.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(4))\n"
        "if dist.get_rank() == 1:\n"
        "    raise ValueError('a batch without labels')\n"
        "dist.all_reduce(torch.ones(4))\n"
    )
    variables = {
        **environment(base),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        "OTEL_PYTHON_TORCHDIST_BUNDLES": str(folder),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    torchrun = [str(SCRIPT.with_name("torchrun")), "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *torchrun],
        env=variables, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "ValueError: a batch without labels" in done.stderr
    [path] = bundles_in(folder, "end")
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]
    shutil.rmtree(base)
    base.mkdir(0o700)
    answer = ask(base, path, "--json")
    assert answer.code == 1
    assert (answer.document["verdict"]["kind"], answer.document["verdict"]["ranks"]) == ("dead", [1])
    assert "a batch without labels" in answer.document["verdict"]["sentence"]
