"""The agent that ranks start: it is up in time, reads everything, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.node.job.directory import CHECKPOINT_NAME
from otel_torchdist.telemetry import semconv
from tests.agent.conftest import JOB
from tests.agent.own_agent import OwnAgent
from tests.agent.training import RANKS, WORKERS, Training, environment
from tests.support.commands.asking import ask
from tests.support.launch.forked_ranks import ORDINARY_END
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.ranks.job_ranks import Ranks
from tests.support.ranks.rank import SHOWS_REDUCE_OP
from tests.support.receivers.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.waiting import until, waited_for_a_core_s

PROMISE_S = 2.0
"""From the process group to the first page of `/metrics`; time in which the agent waits for a core comes on top."""

SAID_OF_EACH = {
    semconv.OPERATION: "all_reduce",
    **({semconv.REDUCE_OP: "sum"} if SHOWS_REDUCE_OP else {}),
    semconv.TENSOR_SHAPES: ["1"],
    semconv.TENSOR_DTYPES: ["float32"],
    semconv.TENSOR_DEVICE: "cpu",
    semconv.TENSOR_COUNT: 1,
    semconv.GROUP_SIZE: RANKS,
    semconv.GROUP_DESCRIPTION: "default_pg",
    semconv.CODE_FUNCTION: "<module>",
    semconv.CODE_FILE: str(WORKERS / "steps.py"),
    semconv.MESSAGE_SIZE: 4,
    semconv.ASYNC: False,
    semconv.PHASE: "outside_backward",
    semconv.COMPLETION_RESOLUTION: 0.0,
}
"""Attributes of every span of gradients, the same with both kernels."""


def check_once_without_orphans(spans: list[ReceivedSpan]) -> None:
    """Each span id once, and every parent before its children."""
    twice = [key for key, count in Counter((span.trace_id, span.span_id) for span in spans).items() if count > 1]
    assert not twice
    seen: set[tuple[int, int]] = set()
    for span in spans:
        assert not span.parent_id or (span.trace_id, span.parent_id) in seen, span.name
        seen.add((span.trace_id, span.span_id))


def recorded(spans: list[ReceivedSpan], name: str) -> Counter[int]:
    """The number of spans of an operation, by rank."""
    return Counter(span.attributes["torchdist.rank"] for span in spans if span.name == name)


def count_on(page: str, operation: str) -> list[int]:
    """The number of operations that `/metrics` counts, by rank."""
    lines = [line for line in page.splitlines() if line.startswith("torchdist_operations_total{")]
    return sorted(int(float(line.rpartition(" ")[2])) for line in lines if f'operation="{operation}"' in line)


@pytest.mark.parametrize("kernel", KERNELS)
def test_from_first_group_to_last_scrape(train: Callable[..., Training], kernel: str) -> None:
    """An agent answers soon after the first group, on one port for both ranks; exports all spans; ends once scraped.

    Spans and metrics say the same with both kernels, whether ends are seen in waits or in callbacks.
    """
    training = train(environ=environ_of(kernel))
    joined = training.joined_at()
    until(training.scrape)
    took_s = training.served_at() - joined
    agent = training.agent()
    assert took_s < PROMISE_S + waited_for_a_core_s(agent)
    parent, session = Path(f"/proc/{agent}/stat").read_text().rpartition(") ")[2].split()[1:4:2]
    assert int(parent) not in [*training.ranks(), training.torchrun.pid]
    assert int(session) == os.getsid(agent) != os.getsid(training.torchrun.pid)
    assert "libtorch" not in Path(f"/proc/{agent}/maps").read_text()
    until(lambda: len(count_on(training.scrape(), "all_reduce")) == RANKS)

    steps = training.end()
    page = until(lambda: page if count_on(page := training.scrape(), "all_reduce") == [steps] * RANKS else "")
    until(training.scraped_to_the_end)
    assert training.target() == ""
    assert re.findall(r'^torchdist_capture_info\{kernel="(\w+)"', page, re.MULTILINE) == [kernel] * RANKS
    timed = re.findall(r'^torchdist_timed_operations_total\{.*operation="all_reduce".* ([\d.]+)$', page, re.MULTILINE)
    assert [float(count) for count in timed] == [steps] * RANKS
    spans = training.receiver.spans()
    reduced = [span.attributes for span in spans if span.name == "all_reduce"]
    assert {found[semconv.COMPLETION] for found in reduced} <= {"wait", *(["callback"] if kernel == "native" else [])}
    assert [found for found in reduced if not SAID_OF_EACH.items() <= found.items()] == []
    assert sorted(found[semconv.STEP] for found in reduced) == sorted(2 * [*range(steps)])
    check_once_without_orphans(spans)
    assert recorded(spans, "all_reduce") == recorded(spans, "broadcast") == dict.fromkeys(range(RANKS), steps)
    assert recorded(spans, "barrier") == dict.fromkeys(range(RANKS), 1)
    assert "Traceback" not in training.log


def up_on(page: str) -> str:
    """The lines of `/metrics` that state which ranks are up."""
    return "\n".join(line for line in page.splitlines() if line.startswith("torchdist_up{"))


def test_agent_that_dies_is_started_again(training: Training) -> None:
    """A rank restarts the agent; it keeps its port, continues counting, and sends no span twice."""
    training.joined_at()
    until(training.scrape)
    target = training.target()
    seen = count_on(until(training.scrape), "all_reduce")
    agent = training.agent()
    os.kill(agent, signal.SIGKILL)
    until(lambda: training.agents() not in ([], [agent]))
    assert count_on(until(training.scrape), "all_reduce") >= seen
    assert training.target() == target
    steps = training.end()
    until(lambda: count_on(training.scrape(), "all_reduce") == [steps] * RANKS)
    until(training.scraped_to_the_end)
    check_once_without_orphans(training.receiver.spans())


# --- Programs that had no agent while they ran ------------------------------------------------------------------------


def test_it_gets_one_when_it_ends(warm_python: WarmPython, base: Path, receiver: OtlpReceiver, tmp_path: Path) -> None:
    """No agent starts beside its `os.wait()`; one does at its end, silently, though Python starts no threads then."""
    environ = {**environment(base, receiver), ORDINARY_END: "true"}
    [done] = warm_python.run(WORKERS / "awaits_children.py", [environ], tmp_path, [str(tmp_path / "store")])
    word, pid = done.out.split()[-2:]
    os.kill(int(pid), signal.SIGKILL)
    assert (done.code, word, done.err) == (0, "trained", "")
    until(lambda: [span.name for span in receiver.spans()].count("all_reduce") == 3)


@pytest.mark.parametrize(
    ("reader", "operations"), [("none", [1, 2]), ("thread", [2]), ("an agent", [2])], ids=["none", "thread", "agent"]
)
def test_agent_of_the_next_run(begin: Callable[..., Ranks], base: Path, reader: str, operations: list[int]) -> None:
    """It exports the run before its own if nothing has: neither that run's ranks, nor maybe an agent before it."""
    first = begin(1, run=1 << 112)
    first.meet(1)
    if reader == "thread":
        first.send(0, "exports")
    elif reader == "an agent":
        (base / JOB / CHECKPOINT_NAME).write_bytes(b"damaged")
    first.exit()
    second = begin(1, run=2 << 112)
    second.meet(2)
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        own.turn_until(lambda: own.shown("torchdist_up"))
        second.exit()
    assert own.exported("all_reduce") == [(0, sequence) for sequence in operations]


# --- Ranks whose tapes do not show how they ended: the exit code does -------------------------------------------------


RANK = Path(__file__).parents[2] / "node" / "processes" / "dying_rank.py"
FATES = (
    ("exit 0", "has ended", "finished"),
    ("exit 3", "is dead: its process is gone", "dead"),
    ("finish 0", "has ended", "finished"),
    ("finish 3", "has failed with exit code 3", "failed"),
    ("give-up", "is dead: its process is gone with BackendGaveUp", "dead"),
)
"""How each rank ends, and what the agent and `diagnose` say of it."""


@pytest.fixture
def ranks(base: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A rank for each fate, and one more, which stays."""
    directory, size = base / JOB, len(FATES) + 1
    directory.mkdir(mode=0o700, parents=True)
    processes = [
        subprocess.Popen(
            [sys.executable, RANK, directory, str(rank), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_exit_codes(base: Path, ranks: list[subprocess.Popen[str]], caplog: pytest.LogCaptureFixture) -> None:
    """By `os._exit`, or at the end of its script: only code 0 is no failure in series, lines and `diagnose`."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    up = dict.fromkeys(range(len(ranks)), 1.0)
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        own.turn_until(lambda: own.shown("torchdist_up") == up)
        for rank, (command, fate, _) in enumerate(FATES):
            deaths = caplog.text.count("is dead")
            stdin = ranks[rank].stdin
            assert stdin is not None
            stdin.write(f"{command}\n")
            stdin.flush()
            own.turn_until(lambda rank=rank, fate=fate: f"rank {rank} {fate}" in caplog.messages)
            if command.endswith("0"):
                del up[rank]
            else:
                up[rank] = 0.0
            own.turn_until(lambda: own.shown("torchdist_up") == up)  # which may come a turn after the line
            assert (caplog.text.count("is dead") > deaths) == fate.startswith("is dead")
    lives = [rank["life"] for rank in ask(base, "--json").document["ranks"]]
    assert lives == [*(life for *_, life in FATES), "running"]
