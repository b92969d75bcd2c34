"""`otel-torchdist agent` over jobs whose ranks are real processes with real tapes."""

from __future__ import annotations

import re
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver

JOB = "job-0123456789abcdef"
THRESHOLD = {"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000", "OTEL_TRACES_EXPORTER": "none"}


@pytest.fixture
def begin(base: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts a job with the given number of ranks below the base directory."""
    begun: list[Ranks] = []

    def begin(size: int, name: str = JOB) -> Ranks:
        begun.append(Ranks(base / name, size))
        return begun[-1]

    yield begin
    for ranks in begun:
        ranks.close()


def test_live_job(start: Callable[..., Running], begin: Callable[..., Ranks], base: Path) -> None:
    """Started first, the agent finds the job, names the late rank, refuses a second agent, and ends with the ranks."""
    agent = start("agent", environ=THRESHOLD)
    ranks = begin(3)
    agent.wait_for(rf"reading {base / JOB}$")
    agent.wait_for(r"found ranks? 0")
    ranks.meet(1)
    ranks.send(2, "load")
    ranks.send(0, "enter 2")
    ranks.send(1, "enter 2")
    agent.wait_for(r"stall: rank 2 has not entered all_reduce \(sequence 2, default_pg\) .* load_batch at rank_process")

    second = start("agent", "--run-dir", base / JOB, environ=THRESHOLD)
    assert second.end() == 2
    assert second.err.startswith(f"otel-torchdist: {base / JOB}: another process reads these tapes")

    ranks.send(2, "enter 2")
    for rank in range(3):
        ranks.send(rank, "end")
    agent.wait_for(r"stall over: all_reduce .* completed after")
    ranks.exit()
    assert agent.end() == 0, agent.story()
    ended = re.findall(r" ranks? ([\d,-]+) ha(?:s|ve) ended$", agent.out, re.M)
    # They may end between two polls: each is still reported once.
    assert sorted(int(rank) for part in ended for rank in re.findall(r"\d+", part.replace("0-2", "0,1,2"))) == [0, 1, 2]
    assert agent.out.rstrip().endswith("all ranks have ended; everything they recorded was exported")


@pytest.mark.thorough
def test_finished_job(start: Callable[..., Running], begin: Callable[..., Ranks], base: Path) -> None:
    """The agent exports all tapes of a finished job once, and ends immediately."""
    ranks = begin(2)
    for sequence in range(1, 6):
        ranks.meet(sequence)
    ranks.exit()
    with OtlpReceiver(GRPC) as receiver:
        agent = start("agent", "--run-dir", base / JOB, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint})
        assert agent.end(40) == 0, agent.story()
        spans = receiver.spans()
    assert len({span.span_id for span in spans}) == len(spans)
    found = Counter((span.name, span.attributes["torchdist.rank"]) for span in spans)
    assert [found["all_reduce", rank] for rank in (0, 1)] == [5, 5]
    assert "found ranks 0-1 of 2 in run" in agent.out


@pytest.mark.thorough
def test_dead_rank_and_sigterm(start: Callable[..., Running], begin: Callable[..., Ranks]) -> None:
    """The agent reports the dead rank and stays, as a launcher may restart it; SIGTERM ends it within 5 s, with 0."""
    ranks = begin(2)
    agent = start("agent", environ=THRESHOLD)
    agent.wait_for(r"found ranks 0-1 of 2")
    ranks.meet(1)
    ranks.kill(1)
    agent.wait_for(r"rank 1 is dead: its process is gone")
    ranks.exit()
    agent.wait_for(r"rank 0 has ended")
    with pytest.raises(subprocess.TimeoutExpired):
        agent.process.wait(1)
    told_at = time.monotonic()
    agent.process.send_signal(signal.SIGTERM)
    assert agent.end(40) == 0
    assert time.monotonic() - told_at < 5
    assert "stopped by SIGTERM; everything recorded so far was exported" in agent.out


@pytest.mark.thorough
def test_rank_that_is_started_again(start: Callable[..., Running], begin: Callable[..., Ranks]) -> None:
    """Ranks that are restarted while the agent stays are read; when they end cleanly, so does it, at once."""
    ranks = begin(2)
    agent = start("agent", "--keep", "300", environ=THRESHOLD)
    agent.wait_for(r"found ranks 0-1 of 2")
    for rank in (0, 1):
        ranks.kill(rank)
    agent.wait_for(r"ranks 0-1 are dead|rank 1 is dead")
    for rank in (0, 1):
        ranks.start_again(rank)
        agent.wait_for(rf"dead(.|\n)*found (rank {rank}|ranks 0-1) of 2")
    ranks.meet(1)
    ranks.exit()
    assert agent.end(40) == 0, agent.story()


@pytest.mark.thorough
def test_last_scrape(start: Callable[..., Running], begin: Callable[..., Ranks]) -> None:
    """If it is being scraped, the agent stays after the last rank for one more scrape, and no longer."""
    ranks = begin(2)
    agent = start("agent", environ=THRESHOLD)
    port = agent.wait_for(r"/metrics is served on port (\d+)")[1]
    agent.wait_for(r"found ranks 0-1 of 2")
    scrape(port)
    ranks.meet(1)
    ranks.exit()
    agent.wait_for(r"ranks 0-1 have ended|rank 1 has ended")
    with pytest.raises(subprocess.TimeoutExpired):
        agent.process.wait(3)  # By then the agent awaits a scrape. Only a later scrape counts.
    assert "torchdist_operations_total{" in scrape(port)
    assert agent.end(40) == 0


def scrape(port: str) -> str:
    """The page of metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def test_newest_live_job_is_read(start: Callable[..., Running], begin: Callable[..., Ranks], base: Path) -> None:
    """Of several jobs the agent reads the live one that began last; ended jobs are not read."""
    begin(1, "job-000000000000000a")
    begin(1, "job-000000000000000b")
    begin(1, "job-000000000000000c").exit()
    agent = start("agent", environ=THRESHOLD)
    agent.wait_for(rf"reading {base}/job-000000000000000b$")


@pytest.mark.parametrize("run_dir", [True, False])
def test_nothing_to_read(start: Callable[..., Running], base: Path, run_dir: bool) -> None:
    """Without a job, the agent fails after the given time, and reports where it has searched."""
    agent = start("agent", "--wait", "0.3", *(["--run-dir", base] if run_dir else []))
    assert agent.end() == 2
    what = "no tape" if run_dir else "no job with a live rank"
    assert agent.err == f"otel-torchdist: {base}: {what} within 0.3 s\n"
