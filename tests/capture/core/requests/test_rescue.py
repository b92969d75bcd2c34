"""The outcomes of a rescue in a rank: saved, refused, failed, too late; each rescue runs once."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from otel_torchdist.capture.parts import rescue
from otel_torchdist.capture.parts.rescue import RescuePlan, Rescuer, StalledRank
from otel_torchdist.model.rank_state.rescue import Rescue, RescueState
from otel_torchdist.node.job.requests.commands import RescueRequest, request_rescue, rescue_path
from tests.support.tapes.own_tape import OwnTape
from tests.support.waiting import until

REQUEST = RescueRequest("ab" * 16, "cd" * 16, "absent", "1", "rank 1 has not entered all_reduce")
THIS = sys.modules[__name__].__name__

called: list[StalledRank] = []
may_end = threading.Event()


def save(stalled: StalledRank) -> None:
    """Remember the call."""
    called.append(stalled)


def save_slowly(stalled: StalledRank) -> int:
    """Save step 41 when the test allows it."""
    called.append(stalled)
    may_end.wait(20)
    return 41


def give_up(stalled: StalledRank) -> None:
    """Raise SystemExit."""
    sys.exit(f"rank {stalled.rank} gives up")


@pytest.fixture
def rank(memory: Path) -> Iterator[OwnTape]:
    """A rank with a tape."""
    called.clear()
    may_end.clear()
    with contextlib.closing(OwnTape(memory)) as one:
        one.recorder.step = 7
        yield one
    may_end.set()


def rescuer(rank: OwnTape, function: str, timeout_s: float = 20.0) -> Rescuer:
    """A rescuer that calls a function of this module."""
    return Rescuer(RescuePlan(f"{THIS}:{function}", timeout_s, Path("/nowhere/rescue")), lambda: rank.recorder)


def published(rank: OwnTape) -> Rescue:
    """Return the published rescue."""
    return rank.reader.status().rescue


def ended(rank: OwnTape) -> Rescue:
    """Wait for the final state of the rescue, and return it."""
    until(lambda: published(rank).state.is_final)
    return published(rank)


def test_saved_once_for_each_stall(rank: OwnTape) -> None:
    """The rescue function runs only on request, once per stall, with step and verdict."""
    one = rescuer(rank, "save")
    one.beat()
    assert called == [] and published(rank) == Rescue()
    request_rescue(rank.recorder.tape.path, REQUEST)
    one.beat()
    assert ended(rank) == Rescue(RescueState.SAVED, 7)
    for _ in range(3):
        one.beat()
    [stalled] = called
    assert (stalled.step, stalled.verdict, stalled.ranks, stalled.text) == (7, "absent", "1", REQUEST.text)
    assert (stalled.run, stalled.directory, stalled.timeout) == (REQUEST.run, Path("/nowhere/rescue"), 20.0)
    request_rescue(rank.recorder.tape.path, RescueRequest("ab" * 16, "ef" * 16, "absent", "0", "rank 0 …"))
    one.beat()
    until(lambda: len(called) == 2)


def test_step_of_the_programs_own(rank: OwnTape) -> None:
    """If the rescue function returns a number, that is the saved step."""
    may_end.set()
    request_rescue(rank.recorder.tape.path, REQUEST)
    rescuer(rank, "save_slowly").beat()
    assert ended(rank) == Rescue(RescueState.SAVED, 41)


def test_within_the_step_of_an_optimizer(rank: OwnTape) -> None:
    """During an optimizer's step no rescue runs: half of the parameters may be updated."""
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    request_rescue(rank.recorder.tape.path, REQUEST)

    def beat_within(*_: object) -> None:
        rescuer(rank, "save").beat()
        assert ended(rank).state is RescueState.IN_OPTIMIZER

    optimizer.register_step_pre_hook(beat_within)
    optimizer.step()
    assert called == []


def test_rank_that_goes_on_meanwhile(rank: OwnTape) -> None:
    """If the rank starts its next step during the rescue, the rescue does not count."""
    request_rescue(rank.recorder.tape.path, REQUEST)
    rescuer(rank, "save_slowly").beat()
    until(lambda: called)
    assert published(rank) == Rescue(RescueState.RUNNING, 7)
    rank.recorder.step = 8
    may_end.set()
    assert ended(rank) == Rescue(RescueState.WENT_ON, 7)


def test_one_that_takes_too_long(rank: OwnTape, caplog: pytest.LogCaptureFixture) -> None:
    """A rescue that ends after the timeout does not count."""
    request_rescue(rank.recorder.tape.path, REQUEST)
    one = rescuer(rank, "save_slowly", timeout_s=0.0)
    one.beat()
    one.beat()
    assert published(rank).state is RescueState.TOO_LATE
    may_end.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "otel-torchdist-rescue"])
    assert published(rank).state is RescueState.TOO_LATE
    assert caplog.messages == ["the rescue of this rank took longer than 0 s and does not count"]


@pytest.mark.parametrize("function", ["give_up", "nothing_of_this_name"])
def test_function_that_raises(rank: OwnTape, function: str, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of the rescue function is logged with its traceback, and ends neither the process nor our thread."""
    request_rescue(rank.recorder.tape.path, REQUEST)
    rescuer(rank, function).beat()
    assert ended(rank).state is RescueState.RAISED
    [record] = caplog.records
    assert record.getMessage() == "the rescue of this rank failed" and record.exc_info is not None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"run": 1}', '{"command": "rm"}', "x" * 100_000])
def test_damaged_request(rank: OwnTape, content: str) -> None:
    """An invalid request file is ignored."""
    rescue_path(rank.recorder.tape.path).write_text(content)
    rescuer(rank, "save").beat()
    assert called == [] and published(rank) == Rescue()


@pytest.mark.parametrize(
    ("target", "is_missing"),
    [
        (f"{THIS}:save", False),
        ("json:loads", False),
        ("imported_only_then:later", False),  # it may be there by then
        (f"{THIS}:sav", True),
        ("nowhere:x", True),
    ],
)
def test_function_that_is_missing(
    target: str, is_missing: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing rescue function is reported some seconds after the start, before any stall."""
    (tmp_path / "imported_only_then.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    one = Rescuer(RescuePlan(target, 60.0, Path("/nowhere")), lambda: None)
    with caplog.at_level(logging.WARNING):
        for _ in range(2 * rescue.BEATS_BEFORE_CHECK):
            one.beat()
    assert [text.split(" in process")[0] for text in caplog.messages] == (
        [f"OTEL_PYTHON_TORCHDIST_ON_STALL: rescue:{target} cannot be found"] if is_missing else []
    )
