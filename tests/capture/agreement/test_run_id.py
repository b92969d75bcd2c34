"""The agreement on a run's id starts peer discovery between the job's nodes, as soon as there is an id."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.capture.agreement import run_id
from otel_torchdist.capture.agreement.peer_discovery import PeerDiscovery, RankAddress, _key
from otel_torchdist.capture.agreement.run_id import RunIdAgreement
from otel_torchdist.capture.session import Capture
from otel_torchdist.job.peers import peers_files, read_peers
from otel_torchdist.tape.layout import RunIdState
from otel_torchdist.tape.reading.reader import TapeReader
from tests.capture.agreement.announcements import HOST, announced, say_port
from tests.support.tapes.tapes import new_writer
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("short_pauses")


@contextlib.contextmanager
def agreeing(
    store: Any, directory: Path, rank: int = 0, has_met_rank_0: bool = True, meets_in: Path | None = None
) -> Iterator[tuple[RunIdAgreement, Path]]:
    """A rank of two nodes, as a session starts it; its tape. It meets in the tape's directory, unless given another."""
    tape = new_writer(directory, rank=rank)
    place = RankAddress(rank, 4, (meets_in or directory) / tape.path.name, HOST)
    agreement = RunIdAgreement(
        SimpleNamespace(tape=tape),  # type: ignore[arg-type]  # of a recorder it takes the tape
        store,
        lambda: has_met_rank_0,
        lambda: False,
        lambda stopping: PeerDiscovery(place, stopping, {"LOCAL_WORLD_SIZE": "2"}),
    )
    try:
        yield agreement, tape.path
    finally:
        agreement.stop()
        tape.close()


def run_of(agreement: RunIdAgreement) -> tuple[int, RunIdState]:
    """Run id and its state on the tape."""
    reader = TapeReader.of_writer(agreement._tape)
    reader.poll()
    status = reader.status()
    return status.run_id, status.run_id_state


def is_meeting(agreement: RunIdAgreement) -> bool:
    """Whether its node is still looking for the others."""
    return any(thread.name == "otel-torchdist-peers" and thread.is_alive() for thread in agreement._threads)


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agreements of this process belong to one default group, as in the processes of a job."""
    monkeypatch.setattr(run_id, "_attempts", itertools.repeat(0))


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Job directories of two nodes, whose agents listen for every run that they have been given."""
    directories = [tmp_path / "node-0", tmp_path / "node-1"]
    for directory in directories:
        directory.mkdir()
    return directories


def have_met(directories: list[Path]) -> bool:
    """Whether each node knows one other, after its agent has read what ranks have written so far."""
    for directory in directories:
        say_port(directory)
    known = [list(peers_files(directory).values()) for directory in directories]
    return all(len(files) == 1 and len(read_peers(files[0][0]).others) == 1 for files in known)


@pytest.mark.usefixtures("one_attempt")
def test_before_any_collective(store: Any, nodes: list[Path]) -> None:
    """A job that hangs in its very first collective: its ranks still agree on the id and its nodes still meet."""
    with (
        agreeing(store.clone(), nodes[1], 2, has_met_rank_0=False) as (other, _),
        agreeing(store, nodes[0], 0, has_met_rank_0=False) as (first, _),
    ):
        assert until(lambda: run_of(other)[1] is RunIdState.AGREED, run_id.DOUBT_S)
        assert run_of(other) == run_of(first)
        assert until(lambda: have_met(nodes))


@pytest.mark.usefixtures("one_attempt")
def test_rank_0_is_stuck(store: Any, nodes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 answers no one after it has set the id: it is taken provisionally, and the nodes meet under it."""
    monkeypatch.setattr(RunIdAgreement, "_answer", lambda *_: None)
    with (
        agreeing(store, nodes[0], 0, has_met_rank_0=False) as (first, _),
        agreeing(store.clone(), nodes[1], 2, has_met_rank_0=False) as (other, _),
    ):
        assert until(lambda: run_of(other) == (run_of(first)[0], RunIdState.PROVISIONAL), run_id.DOUBT_S + 2)
        assert until(lambda: have_met(nodes))


@pytest.mark.usefixtures("one_attempt")
def test_id_of_an_earlier_attempt(store: Any, nodes: list[Path]) -> None:
    """A rank that comes before rank 0 takes the leftover id provisionally, and then the one that rank 0 confirms."""
    elsewhere, here = nodes
    with agreeing(store, elsewhere, 0) as (earlier, _):
        left, _ = run_of(earlier)
    with agreeing(store.clone(), here, 2, has_met_rank_0=False) as (other, _):
        assert until(lambda: run_of(other) == (left, RunIdState.PROVISIONAL))
        with agreeing(store, elsewhere, 0) as (first, _):
            now, _ = run_of(first)
            assert until(lambda: run_of(other) == (now, RunIdState.AGREED))
            assert until(lambda: now in peers_files(here))
    assert now != left


@pytest.mark.usefixtures("one_attempt")
def test_rank_0_of_an_attempt_that_should_be_over(store: Any, nodes: list[Path]) -> None:
    """Rank 0 stops answering once another has set its id, so that no rank gets the wrong answer."""
    with agreeing(store, nodes[0], 0) as (earlier, _), agreeing(store.clone(), nodes[0], 0) as (first, _):
        for rank in (2, 3):
            with agreeing(store.clone(), nodes[1], rank, has_met_rank_0=False) as (other, _):
                assert until(lambda other=other: run_of(other) == (run_of(first)[0], RunIdState.AGREED))
        assert until(lambda: not earlier._threads[0].is_alive())  # it polls the store


def test_question_right_before_rank_0_ends(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 answers it all the same."""
    monkeypatch.setattr(run_id, "FIRST_PAUSE_S", 60.0)
    with agreeing(store, tmp_path) as (agreement, _):
        store.add(agreement._questions, 1)
        agreement.stop()
        assert agreement._read(store).answers == 1


def test_store_that_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The host of the store ends during discovery: one warning, no exception, and the run id stays."""
    hosts: list[Any] = [TCPStore(HOST, 0, is_master=True, wait_for_workers=False)]
    client = TCPStore(HOST, hosts[0].port, is_master=False)
    with agreeing(client, tmp_path) as (agreement, tape):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        say_port(tmp_path)
        assert until(lambda: announced(client, next(iter(peers_files(tmp_path)))) == 1)
        hosts.clear()
        assert until(lambda: caplog.records)  # the thread may run before it is in the agreement's list
        assert until(lambda: not is_meeting(agreement))
        warnings = [record.getMessage() for record in caplog.records if record.name == "otel_torchdist"]
        assert len(warnings) == 1
        assert warnings[0].startswith("the agents of this job's nodes cannot find each other: ")
        assert run_of(agreement)[1] is RunIdState.AGREED
        assert tape.exists()


def test_something_else_in_the_store(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is not an agent is one warning, and ends the discovery."""
    with agreeing(store, tmp_path) as (agreement, _):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        (run,) = peers_files(tmp_path)
        store.set(_key(run, "1"), "[1, 2]")
        store.add(_key(run, "count"), 1)
        say_port(tmp_path)
        assert until(lambda: "it is not a peer" in caplog.text)
        assert until(lambda: not is_meeting(agreement))
    assert [record.levelname for record in caplog.records if record.name == "otel_torchdist"] == ["WARNING"]


def test_rank_that_ends_meanwhile(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rank that ends while it waits for its agent is not delayed, and logs nothing."""
    with agreeing(store, tmp_path) as (agreement, _):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        began = time.monotonic()
        agreement.stop()
        assert time.monotonic() - began < run_id.STOP_S
        assert not any(thread.is_alive() for thread in agreement._threads)
    assert caplog.records == []


def test_directory_that_is_gone(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unwritable job directory is one warning, and the run id is still agreed."""
    with agreeing(store, tmp_path, meets_in=tmp_path / "gone") as (agreement, _):
        assert until(lambda: len(caplog.records) == 1)
        assert run_of(agreement)[1] is RunIdState.AGREED
    (record,) = caplog.records
    assert (record.levelname, "gone" in record.getMessage()) == ("WARNING", True)


def test_ranks_that_are_threads(tmp_path: Path) -> None:
    """Each starts its own agreement; none is left at the end, for inside torch it would abort the process."""
    capture = Capture(lambda: tmp_path, 64)
    capture._begins_tapes = True
    before = set(threading.enumerate())
    recorder = capture.default_group_begins(1, 2)
    assert recorder is not None
    for _ in range(3):
        capture._agreements.agree(recorder, HashStore())  # no rank sets an id there, so it keeps waiting
    agreeing = set(threading.enumerate()) - before - {capture._watch._thread}
    assert len(agreeing) == 3
    capture.uninstall()
    assert not any(thread.is_alive() for thread in agreeing)
