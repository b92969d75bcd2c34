"""The agreement on a run's id holds the meeting of the job's nodes, as soon as there is an id."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.capture import run_id
from otel_torchdist.capture.meeting import Meeting, Place, _key
from otel_torchdist.capture.run_id import RunIdAgreement
from otel_torchdist.tape.layout import RunIdState
from otel_torchdist.tape.peers import peers_files
from otel_torchdist.tape.reader import TapeReader
from tests.capture.meetings import HOST, announced, peers_in, say_port
from tests.tape.tapes import new_writer, until

pytestmark = pytest.mark.usefixtures("short_looks")


@contextlib.contextmanager
def agreeing(
    store: Any, directory: Path, rank: int = 0, has_met_rank_0: bool = True
) -> Iterator[tuple[RunIdAgreement, Path]]:
    """A rank of two nodes, as a session starts it; its tape."""
    tape = new_writer(directory, rank=rank)
    place = Place(rank, 4, tape.path, HOST)
    agreement = RunIdAgreement(
        SimpleNamespace(tape=tape),  # type: ignore[arg-type]  # of a recorder it takes the tape
        store,
        lambda: has_met_rank_0,
        lambda stopping: Meeting(place, stopping, {"LOCAL_WORLD_SIZE": "2"}),
    )
    try:
        yield agreement, tape.path
    finally:
        agreement.stop()
        tape.close()


def run_of(agreement: RunIdAgreement) -> tuple[int, RunIdState]:
    """What its tape says."""
    reader = TapeReader.of_writer(agreement._tape)
    reader.poll()
    status = reader.status()
    return status.run_id, status.run_id_state


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agreements of this process are of one default group, as in the processes of a job."""
    monkeypatch.setattr(run_id, "_attempts", itertools.repeat(0))


@pytest.mark.usefixtures("one_attempt")
def test_nodes_meet_before_the_first_collective_has_ended(store: Any, tmp_path: Path) -> None:
    """A job that hangs in its very first collective proves no rank's id, and its nodes find each other all the same."""
    directories = [tmp_path / "node-0", tmp_path / "node-1"]
    for directory in directories:
        directory.mkdir()
        say_port(directory)
    with (
        agreeing(store, directories[0], 0, has_met_rank_0=False) as (first, _),
        agreeing(store.clone(), directories[1], 2, has_met_rank_0=False) as (other, _),
    ):
        for directory in directories:
            assert until(lambda directory=directory: len(peers_files(directory)) == 1)
            say_port(directory)
        assert until(lambda: all(len(peers_in(directory).others) == 1 for directory in directories), 5)
        assert run_of(first)[1] is RunIdState.AGREED
        assert run_of(other) == (run_of(first)[0], RunIdState.PROVISIONAL)


@pytest.mark.usefixtures("one_attempt")
def test_id_of_an_earlier_attempt(store: Any, tmp_path: Path) -> None:
    """A rank that was there before rank 0 takes its id within a second or two, and its node meets under that."""
    here, elsewhere = tmp_path / "node-1", tmp_path / "node-0"
    here.mkdir()
    elsewhere.mkdir()
    with agreeing(store, elsewhere, 0, has_met_rank_0=False) as (earlier, _):
        left, _ = run_of(earlier)
    with agreeing(store.clone(), here, 2, has_met_rank_0=False) as (other, _):
        assert until(lambda: run_of(other) == (left, RunIdState.PROVISIONAL))
        with agreeing(store, elsewhere, 0, has_met_rank_0=False) as (first, _):
            now, _ = run_of(first)
            assert until(lambda: run_of(other) == (now, RunIdState.PROVISIONAL), 3)
            assert until(lambda: now in peers_files(here))
    assert now != left


def test_store_that_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The host of the store ends while nodes are looked for: one warning, no exception, and the run id stays."""
    hosts: list[Any] = [TCPStore(HOST, 0, is_master=True, wait_for_workers=False)]
    client = TCPStore(HOST, hosts[0].port, is_master=False)
    with agreeing(client, tmp_path) as (agreement, tape):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        say_port(tmp_path)
        assert until(lambda: announced(client, next(iter(peers_files(tmp_path)))) == 1)
        hosts.clear()
        assert until(lambda: agreement.is_over())
        warnings = [record.getMessage() for record in caplog.records if record.name == "otel_torchdist"]
        assert len(warnings) == 1
        assert warnings[0].startswith("the agents of this job's nodes cannot find each other: ")
        reader = TapeReader.of_writer(agreement._tape)
        reader.poll()
        assert reader.status().run_id_state is RunIdState.AGREED
        assert tape.exists()


def test_something_else_in_the_store(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is no agent is one warning, and ends the meeting."""
    with agreeing(store, tmp_path) as (agreement, _):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        (run,) = peers_files(tmp_path)
        store.set(_key(run, "1"), "[1, 2]")
        store.add(_key(run, "count"), 1)
        say_port(tmp_path)
        assert until(lambda: agreement.is_over())
    assert [record.levelname for record in caplog.records if record.name == "otel_torchdist"] == ["WARNING"]
    assert "it is no peer" in caplog.text


def test_rank_that_ends_meanwhile(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rank that ends while it waits for its agent is not held up, and says nothing."""
    with agreeing(store, tmp_path) as (agreement, _):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        began = time.monotonic()
        agreement.stop()
        assert time.monotonic() - began < run_id.STOP_S
        assert agreement.is_over()
    assert caplog.records == []


def test_directory_that_is_gone(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job directory that cannot be written to is one warning, and the run id is agreed all the same."""
    directory = tmp_path / "job"
    directory.mkdir()
    tape = new_writer(directory, rank=0)
    place = Place(0, 4, tmp_path / "gone" / "rank-0.tape", HOST)
    recorder: Any = SimpleNamespace(tape=tape)
    agreement = RunIdAgreement(
        recorder, store, lambda: True, lambda stopping: Meeting(place, stopping, {"LOCAL_WORLD_SIZE": "2"})
    )
    assert until(lambda: agreement.is_over())
    agreement.stop()
    tape.close()
    (record,) = caplog.records
    assert (record.levelname, "gone" in record.getMessage()) == ("WARNING", True)
