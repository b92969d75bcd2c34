"""The live page of real agents and real ranks, in a real browser, while they stall."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from deploy.native.ports import free_port
from tests.agent.training import target_in
from tests.cli.gloo_jobs import LOADING_LINE, GlooJobs
from tests.jobs.faults.faulty_job import FaultyJob
from tests.show.serving.test_site import NOBODY, asked_by
from tests.support.browser import Browser
from tests.support.commands.running import Running, kill_processes_of
from tests.support.launch.nodes import nodes, why_not
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.ranks.job_ranks import RANK_PROCESS, Ranks
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.process
JOB: Final = "job-0123456789abcdef"
NO_NODES: Final = why_not()


@pytest.fixture
def base() -> Iterator[Path]:
    """A base directory for tapes; what is left of a job is killed."""
    with memory_directory() as path:
        yield path / "tapes"
        kill_processes_of(path)


def title(page: Page) -> str:
    """What the banner says first."""
    return page.locator("#verdict").inner_text()


def age_in(text: str) -> float:
    """The age in a title."""
    found = re.search(r"for ([\d.]+) s", text)
    return float(found[1]) if found else 0.0


def state_of(page: Page, rank: int) -> str:
    """The state of a rank in the table."""
    rows = page.locator("section[aria-labelledby=each] tbody tr")
    found = {row.locator("td").first.inner_text(): row.locator("td").nth(1).inner_text() for row in rows.all()}
    return found.get(str(rank), "")


@pytest.mark.thorough
def test_late_stopped_and_killed(browser: Browser, base: Path) -> None:
    """One fault after the other: each time the banner names the rank, its age grows, and it goes when it is over."""
    ranks = Ranks(base / JOB, 3)
    settings = {**QUIET, "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000", "OTEL_TRACES_EXPORTER": "none"}
    agent = Running(base, "agent", "--run-dir", base / JOB, "--keep", "30", environ=settings)
    try:
        for sequence in range(1, 6):
            ranks.meet(sequence)
        address = f"http://{until(lambda: target_in(base))}/"
        with browser.page(address) as (page, noted):
            until(lambda: title(page) == "No stall")
            until(lambda: state_of(page, 0) == "running")
            assert len(page.evaluate("document.querySelector('.lanes canvas').drawn().bars")) > 0, (
                "from before the visit"
            )

            ranks.send(1, "load")
            for rank in (0, 2):
                ranks.send(rank, "enter 6")
            until(lambda: title(page).endswith("(rank 1: absent)"))
            until(lambda: "in load_batch" in page.locator(".banner pre").inner_text())
            assert str(RANK_PROCESS) in page.locator(".banner pre").inner_text()
            assert (
                "Rank 1 has not entered all_reduce (sequence 6, default_pg)" in page.locator(".banner.bad").inner_text()
            )
            assert (state_of(page, 0), state_of(page, 1)) == ("stalled", "absent")
            before = age_in(title(page))
            until(lambda: age_in(title(page)) >= before + 2, 10.0)
            assert before >= 1
            ranks.go_on(1)
            ranks.send(1, "enter 6")
            for rank in range(3):
                ranks.send(rank, "end")
            until(lambda: title(page) == "No stall")

            ranks.signal(2, signal.SIGSTOP)
            for rank in (0, 1):
                ranks.send(rank, "enter 7")
            until(lambda: title(page).endswith("(rank 2: frozen)"))
            assert state_of(page, 2) == "stopped"
            ranks.signal(2, signal.SIGCONT)
            ranks.send(2, "enter 7")
            for rank in range(3):
                ranks.send(rank, "end")
            until(lambda: title(page) == "No stall")

            for rank in (0, 1):
                ranks.send(rank, "enter 8")
            ranks.kill(2)
            until(lambda: title(page).endswith("(rank 2: dead)"))
            assert state_of(page, 2) == "dead"
            assert noted.errors == []

            agent.process.kill()
            page.wait_for_selector(".connection-lost:not([hidden])")
    finally:
        ranks.close()
        agent.close()


def test_a_job_of_torch(browser: Browser, base: Path, tmp_path: Path, warm_python: WarmPython) -> None:
    """The agent that ranks start serves the page: the stack of the late rank, and then the end of the job."""
    exporter = {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}
    job = GlooJobs(warm_python, base, tmp_path, "is late", reader="agent", environ=exporter)
    try:
        address = f"http://{until(lambda: target_in(base))}/"
        with browser.quiet_page(address) as page:
            until(lambda: title(page).endswith("(rank 2: absent)"))
            until(lambda: f"line {LOADING_LINE}, in load_batch" in page.locator(".banner pre").inner_text())
            until(lambda: state_of(page, 2) == "absent")
            job.open_gate()
            until(lambda: title(page) == "The job has ended")
            assert "4 have finished" in page.locator(".banner .sentence").all_inner_texts()[-1]
    finally:
        job.close()


def read(address: str) -> bytes:
    """What an address answers."""
    with urllib.request.urlopen(address, timeout=5) as answer:
        return answer.read()


def test_a_job_with_reader_threads(base: Path, tmp_path: Path, warm_python: WarmPython) -> None:
    """Without an agent the rank that watches serves the page, and the others say that another process does."""
    first = free_port(16)
    common = {"OTEL_EXPORTER_PROMETHEUS_PORT": str(first), "OTEL_TRACES_EXPORTER": "none"}
    job = GlooJobs(warm_python, base, tmp_path, "is late", ranks=2, reader="thread", environ=common)
    found: dict[int, dict[str, Any]] = {}

    def is_of_this_job(one: dict[str, Any]) -> bool:
        """Servers of other tests may be on the next ports; where another process watches, it is one of this job."""
        return not one["watches"] or bool(one["run"] and (base / one["run"]["item"]["directory"]).is_dir())

    def all_answer() -> bool:
        found.clear()
        for port in range(first, first + 16):
            # Where nothing listens yet, a connection may be made to itself, and returns the request.
            with contextlib.suppress(OSError, ValueError, HTTPException):
                one = json.loads(read(f"http://127.0.0.1:{port}/live.json"))
                if is_of_this_job(one):
                    found[port] = one
        ready = [one for one in found.values() if one["at"]]
        return len(ready) == 2 and any(one["run"] and one["run"]["stall"] for one in ready)

    try:
        until(all_answer, 30.0)
        watching = [one for one in found.values() if one["watches"]]
        other = [one for one in found.values() if not one["watches"]]
        assert (len(watching), len(other)) == (1, 1)
        assert watching[0]["run"]["stall"]["ranks"] == "1"
        assert other[0]["runs"] == []
    finally:
        job.close()


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user")
def test_a_service_of_the_node(base: Path) -> None:
    """An agent of root's that reads the jobs of all users shows each of them their own, and root all of them."""
    jobs = {0: Ranks(base / JOB, 2), NOBODY: Ranks(base / "job-fedcba9876543210", 2)}
    for path in (base / "job-fedcba9876543210", *(base / "job-fedcba9876543210").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    settings = {**QUIET, "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "500", "OTEL_TRACES_EXPORTER": "none"}
    agent = Running(base, "agent", "--watch", "--keep", "0", environ=settings)
    try:
        for ranks in jobs.values():
            ranks.meet(1)
        jobs[NOBODY].send(0, "enter 2")
        address = f"http://{until(lambda: target_in(base))}/live.json"

        def seen_by(user: int) -> tuple[dict[int, str], int]:
            found = asked_by(user, address)
            return {run["owner"]: run["state"] for run in found["runs"]}, found["hidden"]

        until(lambda: seen_by(0) == ({0: "running", NOBODY: "stalled"}, 0))
        assert seen_by(NOBODY) == ({NOBODY: "stalled"}, 1)
        assert seen_by(4711) == ({}, 2)
    finally:
        for ranks in jobs.values():
            ranks.close()
        agent.close()


@pytest.mark.thorough
@pytest.mark.skipif(bool(NO_NODES), reason=NO_NODES)
def test_two_nodes(browser: Browser, tmp_path: Path, warm_python: WarmPython) -> None:
    """The agent that judges shows the ranks of both nodes; the other one its own, and a link to the first."""
    with contextlib.ExitStack() as stack:
        two = stack.enter_context(nodes(2))
        base = stack.enter_context(memory_directory())
        receiver = stack.enter_context(OtlpReceiver(GRPC, host=two.outside))
        of_rank = {rank: {"OTEL_EXPORTER_PROMETHEUS_HOST": two.addresses[rank // 2]} for rank in range(4)}
        settings = {"OTEL_PYTHON_TORCHDIST_PAGE": "on"}
        job = FaultyJob(
            warm_python, tmp_path, base, receiver, ("late",), ranks=4, nodes=two, environ=settings, of_rank=of_rank
        )
        stack.callback(job.kill)
        first, second = (f"http://{until(address_of(base, node))}/" for node in (0, 1))
        with browser.quiet_page(first) as page:
            until(lambda: title(page).endswith("(rank 3: absent)"))
            until(lambda: state_of(page, 3) == "absent")
            assert [state_of(page, rank) for rank in range(3)] == ["stalled"] * 3
            assert ", in " in page.locator(".banner pre").inner_text(), "the stack has come from the other node"
        with browser.quiet_page(second) as page:
            until(lambda: title(page).endswith("(rank 3: absent)"))
            link = page.get_by_role("link", name="Open its page")
            link.wait_for()
            assert link.get_attribute("href") == first
            until(lambda: state_of(page, 3) == "absent")
            assert (state_of(page, 0), state_of(page, 2)) == ("", "stalled")
            link.click()
            until(lambda: state_of(page, 0) == "stalled")
        job.open_gate()
        assert [done.code for done in job.join()] == [0] * 4


def address_of(base: Path, node: int) -> Callable[[], str]:
    """Finds the address of a node's agent."""
    return lambda: target_in(base / f"node-{node}")
