"""Training on a device is not affected by capture: graphs, memory, exit codes; and no stall is reported falsely."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from otel_torchdist.capture.core.cuda.driver import cuda_drivers
from otel_torchdist.judge.stall.events import Event
from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.kinds import How
from otel_torchdist.tape.reading.reader import TapeReader
from tests.gpu.one_device import DEVICES
from tests.gpu.world import DEVICE, World
from tests.support.repository import REPOSITORY
from tests.support.tapes.recorded import read_tapes

WORKERS = Path(__file__).parent / "workers"
THRESHOLD_S = 0.5
PROCESS_S = 120.0


def test_graphs_are_captured_and_replayed_as_without_us(world: World) -> None:
    """The captured operation is recorded once, as not followed; replays run no host code and leave no records."""
    tensor = torch.ones(8, device=DEVICE)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            tensor.add_(1)
            dist.all_reduce(tensor)

    [operation] = world.record(capture)
    assert (operation.how, operation.started_how) == (How.UNTRACKED, How.UNTRACKED)
    replays = world.record(lambda: [graph.replay() for _ in range(5)])
    assert replays == []
    assert tensor.tolist() == [6.0] * 8


def test_our_queries_break_no_capture(world: World) -> None:
    """A thread prepared like ours queries events throughout a capture in the strictest mode."""
    calling, watching = cuda_drivers()
    event = calling.create_event(0)
    calling.record(event, 0, torch.cuda.Stream().cuda_stream)
    is_over = threading.Event()
    asked = 0

    def ask() -> None:
        nonlocal asked
        watching.prepare_thread()
        while not is_over.is_set():
            watching.is_done(event)
            asked += 1

    thread = threading.Thread(target=ask)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    tensor = torch.zeros(8, device=DEVICE)
    try:
        with torch.cuda.graph(graph, capture_error_mode="global"):
            asked_before = asked
            world.until(lambda: asked > asked_before + 100)
            tensor.add_(1)
    finally:
        is_over.set()
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert tensor.tolist() == [1.0] * 8


def test_no_stall_behind_a_long_kernel(world: World) -> None:
    """The device computes for three times the threshold with collectives in its queue, and no stall is reported."""
    follower = TapeFollower(TapeReader.of_writer(world.capture.current_recorder().tape))  # type: ignore[union-attr]
    detector = Detector(StallRules(round(THRESHOLD_S * 1e9)), time.monotonic_ns())
    events: list[Event] = []
    tensor = torch.ones(8, device=DEVICE)
    world.sleep(3 * THRESHOLD_S)
    works = [dist.all_reduce(tensor, async_op=is_async) for is_async in (False, True, False)]
    done = torch.cuda.Event()
    done.record()
    while not done.query():
        follower.observe(follower.reader.poll())
        events += detector.process(worlds([follower], time.monotonic_ns()))
        time.sleep(0.05)
    assert works[1] is not None
    works[1].wait()
    assert events == []


def test_memory_is_free_as_early_as_without_us(world: World) -> None:
    """After the wait no part of an operation keeps its tensors alive, though its end is not known yet."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    tensor = torch.ones(1 << 24, device=DEVICE)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    del work, tensor
    assert torch.cuda.memory_allocated() == before
    world.record(lambda: None)


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("exit", 3)])
def test_exit_codes_with_operations_on_the_device(folder: Path, how: str, code: int) -> None:
    """The process ends with the device in the middle of its queue, with the same exit code as without us."""
    [bare] = run_ranks("in_flight_at_exit", folder, 1, how, "bare")
    [recorded] = run_ranks("in_flight_at_exit", folder, 1, how, "recorded")
    assert (bare.returncode, recorded.returncode) == (code, code), recorded.stderr
    [tape] = read_tapes(folder)
    assert tape.lost == 0


def test_a_device_that_comes_late(folder: Path) -> None:
    """One rank's device comes late: the other's begins earlier, and both end together."""
    for done in run_ranks("late_device", folder, 2):
        assert done.returncode == 0, done.stderr
    punctual, late = (tape.named("all_reduce")[-1].raw for tape in read_tapes(folder))
    assert punctual.started_ns is not None
    assert late.started_ns is not None
    assert late.started_ns - punctual.started_ns > 0.5e9
    # Two processes on one device take turns, of some milliseconds each.
    assert punctual.completed_ns == pytest.approx(late.completed_ns, abs=5e6 if DEVICES() > 1 else 50e6)
    sent, received = (tape.named(name)[-1] for tape, name in zip(read_tapes(folder), ("send", "recv"), strict=True))
    assert (sent.how, received.how) == ("WATCHDOG", "WATCHDOG")


def run_ranks(worker: str, folder: Path, ranks: int, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run a script of `workers` as every rank of a job."""
    environ = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}",
        "TAPES": str(folder),
        "STORE": str(folder / "store"),
        "WORLD_SIZE": str(ranks),
    }
    command = [sys.executable, str(WORKERS / f"{worker}.py"), *arguments]
    processes = [
        subprocess.Popen(
            command,
            env=environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=PROCESS_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(command, process.returncode, out, err)
        for process, (out, err) in zip(processes, outputs, strict=True)
    ]
