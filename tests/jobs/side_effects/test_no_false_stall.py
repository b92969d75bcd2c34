"""Operations that are open without being stuck never count as a stall, for any time; the same watch finds real ones."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from otel_torchdist.model.kinds import Flag
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.reading.reader import TapeReader
from tests.jobs.side_effects.conftest import Run
from tests.support.devices.device_rank import MAIN_STREAM, OTHER_STREAM, device_rank
from tests.support.launch.jobs import Job
from tests.support.tapes.fake_tape import FakeTape
from tests.support.tapes.tape_watch import Lookout

THRESHOLD_S = 0.6


def test_of_gloo(run: Run) -> None:
    """Scatters that ended without a sign, and sends and receives that are never waited for; then a rank is absent."""
    job = run("left_open", 2, str(THRESHOLD_S))
    quiet, stalled = job.ranks[0].lines()
    assert (quiet["suspected"], quiet["verdicts"]) == ([], 0)
    assert set(quiet["open_for"]) == {
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "send",
        "recv",
    }
    assert min(quiet["open_for"].values()) > THRESHOLD_S
    assert set(stalled["suspected"]) == {"all_reduce"}
    assert (stalled["kind"], stalled["ranks"]) == ("absent", [1])


@pytest.fixture(scope="module")
def pretended(run: Run) -> Job:
    """A rank on the fake backend that watches itself."""
    return run("pretended", 1, str(THRESHOLD_S / 2))


@pytest.mark.parametrize("case", ["left alone", "coalesced and left alone", "in the middle of coalescing"])
def test_of_pretended_jobs(pretended: Job, case: str) -> None:
    """On the fake backend nothing ever ends; coalesced operations are issued at the end of the block only."""
    [seen] = [line for line in pretended.ranks[0].lines() if line["case"] == case]
    assert (seen["suspected"], seen["verdicts"]) == ([], 0)
    assert min(seen["open_for"].values()) > THRESHOLD_S / 2


def test_of_waits_for_what_was_coalesced(pretended: Job) -> None:
    """All operations of a block are waited for at its end, and could be stuck from then on."""
    [tape] = pretended.tapes
    waited_for = [one for one in tape.operations if Flag.COALESCED in one.raw.flags and one.has_ended]
    assert [operation.name for operation in waited_for] == ["broadcast", "all_gather", "reduce"]
    for operation in waited_for:
        raw = operation.raw
        assert raw.returned_ns is not None and raw.wait_entered_ns is not None
        assert raw.entered_ns < raw.returned_ns < raw.wait_entered_ns
        assert msgspec.structs.replace(raw, completed_ns=None).waiting_since_ns == raw.wait_entered_ns


def test_of_a_long_block(tmp_path: Path) -> None:
    """On a backend whose Works do report their end, coalesced operations count from the wait on, and not before."""
    rank = FakeTape(tmp_path)
    began_ns = time.monotonic_ns()
    number = rank.begin(at=began_ns, flags=Flag.COALESCED)
    rank.mark(number, Word.RETURNED, time.monotonic_ns() - began_ns)
    with closing(rank.writer):
        lookout = Lookout([rank.reader], THRESHOLD_S / 2)
        lookout.well_past_the_threshold()
        assert lookout.events == []
        rank.mark(number, Word.WAIT_ENTERED, time.monotonic_ns() - began_ns)
        lookout.until(lambda: lookout.suspected)
        assert lookout.suspected == ["all_reduce"]


@pytest.mark.parametrize("case", ["captured in a graph", "under blocking waits"])
def test_of_devices(tmp_path: Path, case: str) -> None:
    """Operations not followed on a device are not waited for, though they never end; those that are followed are."""
    with device_rank(tmp_path, has_watchdog=case != "under blocking waits") as rank:
        lookout = Lookout([TapeReader.of_writer(rank.recorder.tape)], THRESHOLD_S / 2)
        if case == "captured in a graph":
            rank.device.capturing.add(MAIN_STREAM)
            rank.run(None)
        rank.start(None)
        lookout.well_past_the_threshold()
        assert lookout.events == []
        rank.device.capturing.clear()
        rank.run(None, stream=OTHER_STREAM)
        lookout.until(lambda: lookout.suspected)
        assert lookout.suspected == ["all_reduce"]
