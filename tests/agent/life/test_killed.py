"""Agents that are killed or stopped in the middle of a run, and their successors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.life.test_life import check_once_without_orphans, count_on, recorded
from tests.agent.training import RANKS, Training, environment, page_of
from tests.support.commands.running import SCRIPT, processes_of
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.tapes.recorded import read_tapes
from tests.support.waiting import until

NAMESPACES = shutil.which("unshare") and not subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode
NOBODY = {"OTEL_PYTHON_TORCHDIST_READER": "none"}
KILLS = 5


def start_agent(training: Training, *options: str) -> subprocess.Popen[bytes]:
    """Start an agent manually, over the only job directory."""
    [directory] = training.base.glob("job-*")
    return subprocess.Popen(
        [str(SCRIPT), "agent", "--run-dir", str(directory), "--keep", "0", *options],
        env=environment(training.base, training.receiver),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.thorough
def test_killed_again_and_again(train: Callable[..., Training]) -> None:
    """Five agents in a row are killed: no operation is missing in the metrics, and no span is duplicated."""
    training = train(environ=NOBODY, pause_s=0.01)
    training.joined_at()
    seen = 0
    for _ in range(KILLS):
        agent = start_agent(training)
        before = seen
        until(lambda before=before: min(count_on(training.scrape(), "all_reduce"), default=0) > before + 20)
        seen = min(count_on(training.scrape(), "all_reduce"))
        agent.kill()
        agent.wait(60)
    agent = start_agent(training, "--keep", "60")
    until(lambda: min(count_on(training.scrape(), "all_reduce"), default=0) > seen)
    steps = training.end()
    page = until(lambda: page if count_on(page := training.scrape(), "barrier") == [1] * RANKS else "")
    assert count_on(page, "all_reduce") == count_on(page, "broadcast") == [steps] * RANKS
    durations = [line for line in page.splitlines() if line.startswith("torchdist_operation_duration_seconds_count{")]
    counts = [float(line.rpartition(" ")[2]) for line in durations if 'operation="all_reduce"' in line]
    assert counts == [steps * RANKS]

    def has_ended() -> bool:
        training.scrape()  # it stays for one after it has seen the end, which may be later than the one above
        return agent.poll() is not None

    until(has_ended, 40)
    assert agent.returncode == 0
    spans = training.receiver.spans()
    check_once_without_orphans(spans)
    # Spans in a queue are lost when their agent is killed.
    assert all(0 < count <= steps for count in recorded(spans, "all_reduce").values())


def test_stopped_and_taken_over(train: Callable[..., Training]) -> None:
    """On SIGTERM everything is flushed within five seconds; the next agent continues; in the end nothing is missing."""
    training = train(environ=NOBODY)
    training.joined_at()
    agent = start_agent(training)
    training.receiver.wait_for(lambda spans: recorded(spans, "all_reduce")[0] > 20)
    began = time.monotonic()
    agent.terminate()
    assert agent.wait(40) == 0
    assert time.monotonic() - began < 5.0 + 2.0
    agent = start_agent(training)
    exported = len(training.receiver.spans())
    training.receiver.wait_for(lambda spans: len(spans) > exported)
    steps = training.end()
    assert agent.wait(60) == 0
    spans = training.receiver.spans()
    check_once_without_orphans(spans)
    for name in ("all_reduce", "broadcast", "optimizer step"):
        assert recorded(spans, name) == dict.fromkeys(range(RANKS), steps)

    assert start_agent(training).wait(60) == 0
    assert len(training.receiver.spans()) == len(spans), "what was exported is not exported again"
    assert start_agent(training, "--again").wait(60) == 0
    assert len(training.receiver.spans()) > len(spans)


@pytest.mark.thorough
def test_group_that_is_killed(train: Callable[..., Training]) -> None:
    """A parent that kills the whole process group, as Slurm does, spares the agent: it has its own session."""
    training = train(environ={"OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0"})
    training.joined_at()
    until(training.scrape)
    agent = training.agent()
    training.receiver.wait_for(lambda spans: recorded(spans, "all_reduce")[0] > 5)
    groups = {os.getpgid(pid) for pid in [training.torchrun.pid, *training.ranks()]}
    for group in groups:
        os.killpg(group, signal.SIGKILL)
    training.torchrun.wait(60)
    until(lambda: not Path(f"/proc/{agent}").exists())
    spans = training.receiver.spans()
    check_once_without_orphans(spans)
    for tape in read_tapes(training.base):
        ended = [operation for operation in tape.operations if operation.name == "all_reduce" and operation.has_ended]
        assert recorded(spans, "all_reduce")[tape.identity.rank] - len(ended) in (0, 1), "one may have been cut off"


@pytest.mark.thorough
@pytest.mark.skipif(not NAMESPACES, reason="this user cannot make PID namespaces")
def test_pid_namespace(base: Path, receiver: OtlpReceiver, tmp_path: Path) -> None:
    """In a container whose first process is the training, the agent ends with it, and the tapes stay readable."""
    script = Path(__file__).parents[1] / "workers" / "alone.py"
    gate = tmp_path / "gate"
    gate.touch()
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, str(script), str(gate)]
    environ = environment(base, receiver)
    job = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: page_of(base))
        inside = [pid for pid in processes_of(base) if pid != job.pid]
        assert len(inside) == 2  # the rank and the agent
        gate.unlink()
        out, _ = job.communicate(timeout=60)
        assert job.returncode == 0, out
        until(lambda: not processes_of(base), 40)
    finally:
        job.kill()
        job.wait(60)
    [tape] = base.glob("job-*/*.tape")
    done = subprocess.run(
        [str(SCRIPT), "agent", "--run-dir", str(tape.parent)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "rank 0 of 1" in done.stdout
    assert "dead" not in done.stdout


@pytest.mark.thorough
def test_service_of_the_node(train: Callable[..., Training], base: Path, receiver: OtlpReceiver) -> None:
    """An agent that watches the node starts reading each new run, and stops reading those that are over."""
    command = [str(SCRIPT), "agent", "--watch", "--keep", "1"]
    environ = environment(base, receiver)
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as service:
        try:
            for _ in range(2):
                training = train(environ=NOBODY)
                training.joined_at()
                until(lambda training=training: len(count_on(training.scrape(), "all_reduce")) == RANKS)
                training.end()
                until(lambda training=training: not training.target())
                training.close(but=service.pid)
        finally:
            service.terminate()
            out, _ = service.communicate(timeout=20)
    assert service.returncode == 0, out
    assert out.count("reading /") - 2 == out.count("stopped reading /") == 2
    spans = receiver.spans()
    check_once_without_orphans(spans)
    assert len({span.attributes["torchdist.run"] for span in spans if span.name.startswith("step")}) == 2
