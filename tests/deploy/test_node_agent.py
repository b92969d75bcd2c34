"""The node's agent as in the chart: with these capabilities alone, in its own PID namespace."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.agent.training import page_of
from tests.deploy.kubernetes.chart import VARIANTS, containers, pod_template, resources, the
from tests.support.commands.running import SCRIPT, environment
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import until

NOBODY = 65534
JOB = "job-0123456789abcdef"
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
MISSED_S = 5.0
"""The agent looks for jobs once a second."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away and drop capabilities")


def agent() -> dict[str, Any]:
    """The agent's container as the chart installs it on nodes."""
    return containers(pod_template(the("DaemonSet", resources(*VARIANTS["nodeAgent"]))))[0]


def granted() -> list[str]:
    """The capabilities that it has."""
    return agent()["securityContext"]["capabilities"]["add"]


def confined(capabilities: list[str]) -> list[str]:
    """The agent's command, with these capabilities and no others."""
    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    return [*NAMESPACE, "setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs", str(SCRIPT)]


@pytest.fixture
def base(memory: Path) -> Path:
    """A base directory for tapes, in memory."""
    memory.chmod(0o755)
    return memory / "tapes"


@pytest.fixture
def ranks(base: Path) -> Iterator[Ranks]:
    """Two ranks of a job whose files belong to another user."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no PID namespace")
    base.mkdir(0o700)
    with contextlib.closing(Ranks(base / JOB, 2)) as ranks:
        for path in (base, *base.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        yield ranks


@pytest.fixture
def watch(base: Path) -> Iterator[Callable[[list[str]], None]]:
    """Starts the command of the chart with these capabilities."""
    with contextlib.ExitStack() as stack:

        def start(capabilities: list[str]) -> None:
            command = [*confined(capabilities), *agent()["command"][1:]]
            process = subprocess.Popen(command, env={**environment(base), "OTEL_TRACES_EXPORTER": "none"})
            stack.callback(process.wait)
            stack.callback(process.kill)

        yield start


def owners(path: Path) -> set[int]:
    """Owners of the files there."""
    found: set[int] = set()
    for entry in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # it was being written, and has its name now
            found.add(entry.lstat().st_uid)
    return found


def up_in(page: str) -> dict[str, float]:
    """The value of `torchdist_up` by rank."""
    families = {family.name: family for family in text_string_to_metric_families(page)}
    samples = families["torchdist_up"].samples if "torchdist_up" in families else []
    return {sample.labels["rank"]: sample.value for sample in samples}


def test_capabilities_suffice(base: Path, ranks: Ranks, watch: Callable[[list[str]], None]) -> None:
    """The agent reads another user's job, leaves no file of root's there, and sees a death across PID namespaces."""
    watch(granted())
    until(lambda: up_in(page_of(base)) == {"0": 1, "1": 1})
    until((base / JOB / "agent.checkpoint").exists)
    until(lambda: owners(base) == {NOBODY})  # what is being written is root's for a moment
    ranks.kill(1)
    until(lambda: up_in(page_of(base)).get("1") == 0)


@pytest.mark.thorough
def test_no_access_without_override(base: Path, ranks: Ranks, watch: Callable[[list[str]], None]) -> None:
    """Without DAC_OVERRIDE the agent reads no tape."""
    watch([name for name in granted() if name != "DAC_OVERRIDE"])
    time.sleep(MISSED_S)
    assert page_of(base) == ""
    ranks.meet(1)


@pytest.mark.thorough
def test_files_of_root_without_chown(base: Path, ranks: Ranks, watch: Callable[[list[str]], None]) -> None:
    """Without CHOWN the user finds files of root's, which their own agent could not use."""
    watch([name for name in granted() if name != "CHOWN"])
    until(lambda: up_in(page_of(base)))
    assert owners(base) == {NOBODY, 0}
    ranks.meet(1)
