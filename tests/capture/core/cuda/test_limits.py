"""Operations on a device whose start or end cannot be followed: their records, and that nothing breaks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.capture.core.c10d.devices import Devices
from otel_torchdist.capture.core.cuda.operations import blocks_in_wait
from otel_torchdist.model.kinds import How
from tests.support.devices.device_rank import MAIN_STREAM, DeviceRank, Issued, NcclWork, device_rank
from tests.support.devices.simulated_device import MS
from tests.support.launch.forked_ranks import ORDINARY_END
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import IN_PYTHON


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[DeviceRank]:
    """A rank with a device, limited to eight events."""
    with device_rank(tmp_path, max_events=8) as one:
        yield one


def expect_untracked(rank: DeviceRank, issued: Issued) -> None:
    """Check that the record is complete, and marks start and end as unknown."""
    operation = rank[issued]
    assert (operation.how, operation.started_how) == (How.UNTRACKED, How.UNTRACKED)
    assert operation.started_ns == operation.entered_ns


def test_nothing_is_recorded_while_a_graph_is_captured(rank: DeviceRank) -> None:
    """During a capture no event is recorded, because it would become part of the graph, and queries do not break it."""
    stuck = rank.run(None)
    rank.until(lambda: rank[stuck].started_ns)
    rank.device.capturing.add(MAIN_STREAM)
    asked = rank.device.asked
    expect_untracked(rank, rank.run(1 * MS))
    expect_untracked(rank, rank.start(1 * MS))
    rank.until(lambda: rank.device.asked > asked + 3)
    assert rank.device.broken_captures == 0
    rank.device.capturing.clear()
    rank.device.release(stuck.kernel)
    rank.until_ended(rank.run(1 * MS))


def test_events_are_bounded_and_used_again(rank: DeviceRank) -> None:
    """Beyond the maximum number of events an operation is not followed. Each end frees events."""
    stuck = [rank.run(None) for _ in range(4)]
    expect_untracked(rank, rank.run(1 * MS))
    for issued in stuck:
        rank.device.release(issued.kernel)
    rank.until_ended(*stuck)
    for _ in range(10):
        assert [operation.how for operation in rank.until_ended(rank.run(50_000))] == [How.EVENT]
    assert len(rank.device.events) == 8 + 2, "and two of the clock's"


def test_an_operation_that_raises_gives_its_events_back(rank: DeviceRank) -> None:
    """An operation that torch refuses is over immediately, and its events are reused."""
    for _ in range(20):
        call = rank.enter()
        rank.refuse(call, ValueError("refused"))
        assert rank.read()[call.number].how is How.FAILED
    rank.until(lambda: rank.until_ended(rank.run(50_000))[0].how is How.EVENT)
    assert len(rank.device.events) <= 8 + 2


def test_a_backend_without_a_watchdog(tmp_path: Path) -> None:
    """With NCCL's blocking waits, asynchronous operations are not followed: their ends would never be reported."""
    with device_rank(tmp_path, has_watchdog=False) as rank:
        expect_untracked(rank, rank.start(1 * MS))
        assert [operation.how for operation in rank.until_ended(rank.run(1 * MS))] == [How.EVENT]


@pytest.mark.parametrize(("value", "blocks"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_blocking_waits(value: str, blocks: bool) -> None:
    """The variable for blocking waits is parsed as NCCL's process group parses it."""
    assert blocks_in_wait({"TORCH_NCCL_BLOCKING_WAIT": value}) is blocks
    assert not blocks_in_wait({})


def test_a_backend_that_has_no_such_future(rank: DeviceRank) -> None:
    """An operation whose Work lacks NCCL's result future has an unknown end."""

    class OtherWork(NcclWork):
        def get_future_result(self) -> None:  # type: ignore[override]
            raise RuntimeError("Work::getFutureResult not implemented.")

    call = rank.enter(is_async=True)
    rank.leave(call, OtherWork(None, None))  # type: ignore[arg-type]
    operation = rank.read()[call.number]
    assert (operation.how, operation.started_how) == (How.UNTRACKED, How.UNTRACKED)


def test_without_a_driver(tmp_path: Path) -> None:
    """If the device cannot be queried at all, operations are recorded as enqueued."""
    with device_rank(tmp_path) as rank:
        rank.hot_path.devices = rank.devices = Devices(lambda: None)
        expect_untracked(rank, rank.run(1 * MS))


@pytest.mark.parametrize("caller", ["user", "us"])
def test_a_device_that_reports_an_error(rank: DeviceRank, caller: str, caplog: pytest.LogCaptureFixture) -> None:
    """After an error the device is not queried again: one warning, open operations end as unknown, training goes on."""
    stuck, behind = rank.run(None), rank.start(None)
    rank.until(lambda: rank[stuck].started_ns)
    with caplog.at_level(logging.WARNING, "otel_torchdist"):
        rank.device.failure = "cudaErrorIllegalAddress"
        if caller == "user":
            expect_untracked(rank, rank.run(1 * MS))
        ended = rank.until_ended(stuck, behind)
    assert [operation.how for operation in ended] == [How.UNTRACKED, How.UNTRACKED]
    assert [record.message for record in caplog.records] == [
        "otel_torchdist no longer follows operations on CUDA devices: cudaErrorIllegalAddress"
    ]
    asked = rank.device.asked
    expect_untracked(rank, rank.run(1 * MS))
    assert rank.device.asked == asked


def test_a_device_that_breaks_inside_a_call(rank: DeviceRank, caplog: pytest.LogCaptureFixture) -> None:
    """An error between the two events of an operation counts as the operation's end."""
    call = rank.enter()
    rank.device.failure = "cudaErrorLaunchFailure"
    rank.leave(call)
    assert rank.read()[call.number].how is How.UNTRACKED


def test_the_thread_sleeps_and_wakes(rank: DeviceRank) -> None:
    """Without operations the poller sleeps and queries nothing. The next operation wakes it."""
    rank.until_ended(rank.run(50_000))
    rank.until(lambda: rank.cuda.poller.is_asleep)
    rank.until_ended(rank.run(50_000))


def test_the_end_of_a_tape_waits_for_the_watchdog(rank: DeviceRank) -> None:
    """The end of a tape waits for the watchdog's next round, so the last asynchronous operation ends."""
    issued = rank.start(1 * MS)
    rank.until(lambda: rank.device.is_over(issued.kernel))
    rank.until(lambda: rank[issued].started_ns)
    rank.watchdog()
    rank.cuda.settle(5.0)
    assert rank[issued].how is How.WATCHDOG


def test_operations_that_are_open_at_the_end_of_a_tape(rank: DeviceRank) -> None:
    """Operations open at the end of a tape are released soon, and stay open on the tape."""
    stuck, behind = rank.run(None), rank.start(None)
    rank.until(lambda: rank[stuck].started_ns)
    began_ns = rank.device.now()
    rank.devices.ends(rank.recorder)
    assert rank.device.now() - began_ns < 5_000 * MS
    rank.device.release(stuck.kernel)
    rank.until_ended(rank.run(1 * MS))
    assert rank[stuck].is_open
    assert rank[behind].is_open
    assert not rank.cuda.written


def test_events_are_destroyed_when_we_are_switched_off(tmp_path: Path) -> None:
    """Switching off destroys the events. Process exit does not, because the device may be gone."""
    for gives_up in (True, False):
        directory = tmp_path / str(gives_up)
        directory.mkdir()
        with device_rank(directory) as rank:
            rank.until_ended(rank.run(50_000), rank.run(50_000))
            rank.devices.close(at_exit=not gives_up)
            assert {event.is_destroyed for event in rank.device.events.values()} == {gives_up}


def test_a_device_that_does_not_answer(tmp_path: Path) -> None:
    """A hanging query blocks only our thread: calls and the shutdown return."""
    with device_rank(tmp_path) as rank:
        rank.until_ended(rank.run(50_000))
        with rank.device.busy():
            stuck = Issued(rank.enter().number, rank.device.launch(MAIN_STREAM, None))
            began_ns = rank.device.now()
            rank.devices.ends(rank.recorder)
            rank.cuda.poller.stop(0.05, destroy_events=False)
            assert rank.device.now() - began_ns < 2_000 * MS
        assert rank[stuck].is_open


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # that is what is tested
def test_a_forked_child_leaves_the_device_alone(tmp_path: Path) -> None:
    """A forked child has no poller, and neither frees nor queries anything of its parent."""
    with device_rank(tmp_path) as rank:
        stuck = rank.run(None)
        rank.until(lambda: rank[stuck].started_ns)
        before = (rank.device.asked, len(rank.device.events))
        child = os.fork()
        if not child:
            rank.devices.forget_in_child()
            rank.devices.ends(rank.recorder)
            rank.devices.close(at_exit=False)
            alone = not rank.devices.written and (rank.device.asked, len(rank.device.events)) >= before
            os._exit(0 if alone else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rank.device.release(stuck.kernel)
        rank.until_ended(stuck)


@IN_PYTHON  # the library is not in use: the rank is put together by hand
@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("exit", 3), ("terminate", -15)])
def test_the_end_of_the_process(jobs: Jobs, how: str, code: int) -> None:
    """Operations in flight change neither the exit code nor the time to exit, and stay open on the tape."""
    [tape] = jobs.run("device_at_exit", 1, how, environ={ORDINARY_END: "true"}, codes=[code], timeout_s=30).tapes
    assert [(operation.how, operation.raw.is_queued) for operation in tape.operations] == [
        ("open", False),
        ("open", True),
    ]
