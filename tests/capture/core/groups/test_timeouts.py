"""The timeouts of groups on the tape, and the end of operations that time out."""

from __future__ import annotations

from datetime import timedelta

import pytest

from otel_torchdist.capture.core.calls.backends import at_timeout_of, milliseconds_of
from otel_torchdist.model.kinds import Blame, How
from otel_torchdist.model.names import AtTimeout
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.tapes.recorded import RecordedTape


def timeouts(tape: RecordedTape) -> list[tuple[str, int]]:
    """Return name and timeout in seconds of a rank's calls, in order."""
    return [(operation.name, operation.group.timeout_ms // 1000) for operation in tape.operations]


def test_each_operation_has_the_timeout_that_it_was_issued_with(jobs: Jobs) -> None:
    """An operation has its group's timeout at that time. It is unknown if the call passed a timeout."""
    [tape] = jobs.run("timeouts", 1, "changed").tapes
    assert timeouts(tape) == [
        ("all_reduce", 45),
        ("barrier", 45),
        ("all_reduce", 70),
        ("all_reduce", 50),
        ("all_reduce", 60),
        ("all_reduce", 50),
        ("barrier", 0),
        ("monitored_barrier", 0),
        ("all_reduce", 70),
    ]
    groups = [operation.group for operation in tape.operations]
    assert {group.at_timeout for group in groups} == {AtTimeout.RAISES}
    assert len({group.key for group in groups}) == 2
    created = [operation.group for operation in tape.rendezvous]
    assert created == [groups[0], groups[2]]  # one entry, although it may hold thousands of ranks


def test_timeouts_that_keep_changing_are_bounded(jobs: Jobs) -> None:
    """Each change may add a name that lists all ranks. Beyond a maximum number of changes the timeout is unknown."""
    [tape] = jobs.run("timeouts", 1, "often").tapes
    assert timeouts(tape)[-1] == ("all_reduce", 0)


@NATIVE_LATER
def test_gloo_raises_when_it_is_said_to(jobs: Jobs) -> None:
    """Gloo's timeout counts from the call of a collective, but from the wait for a receive; see `verdict.giving_up`."""
    tape, _ = jobs.run("timeouts", 2, "raises").tapes
    failed = [operation for operation in tape.operations if operation.raw.how is How.FAILED]
    took_s: dict[str, float] = {}
    for operation in failed:
        raw = operation.raw
        since_ns = raw.entered_ns if operation.name == "all_reduce" else raw.wait_entered_ns
        assert raw.completed_ns is not None
        assert since_ns is not None
        assert operation.group.timeout_ms == 2000
        assert raw.blame is Blame.TIMEOUT
        took_s[operation.name] = (raw.completed_ns - since_ns) / 1e9
    assert took_s.keys() == {"recv", "all_reduce"}
    assert min(took_s.values()) > 1.9, "since the call, a receive would have failed half a second earlier"


@pytest.mark.parametrize(
    ("backend", "variables", "expected"),
    [
        ("gloo", {}, AtTimeout.RAISES),
        ("cpu:gloo,cuda:gloo", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, AtTimeout.RAISES),
        ("cpu:gloo,cuda:nccl", {}, AtTimeout.UNKNOWN),
        ("mpi", {}, AtTimeout.UNKNOWN),
        ("undefined", {}, AtTimeout.UNKNOWN),
        ("", {}, AtTimeout.UNKNOWN),
        ("nccl", {}, AtTimeout.ENDS),
        ("nccl-legacy", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, AtTimeout.ENDS),
        ("nccl", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}, AtTimeout.ABORTS),
        ("nccl", {"NCCL_ASYNC_ERROR_HANDLING": "0"}, AtTimeout.NOTHING),
        ("nccl", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "x"}, AtTimeout.UNKNOWN),
        ("nccl", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "7"}, AtTimeout.UNKNOWN),
        ("nccl", {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, AtTimeout.RAISES),
        ("nccl", {"TORCH_NCCL_BLOCKING_WAIT": "0"}, AtTimeout.ENDS),
    ],
)
def test_what_a_backend_does(
    backend: str, variables: dict[str, str], expected: AtTimeout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaction to a timeout follows the rank's variables. It is unknown for other backends than gloo and NCCL."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert at_timeout_of(backend) is expected


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), None, 30, "30 s"])
def test_timeouts_that_are_none(timeout: object) -> None:
    """A missing or invalid timeout is unknown."""
    assert milliseconds_of(timeout) == 0
