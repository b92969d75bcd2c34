"""Agreement on a run id, and the peer discovery that starts as soon as there is one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.capture.core.groups.groups import Groups
from otel_torchdist.capture.core.run.agreements import Agreements
from otel_torchdist.capture.core.run.peer_discovery import PeerDiscovery, RankAddress, store_key
from otel_torchdist.capture.core.run.run_id import RunIdAgreement
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.node.job.peers import peers_files, read_peers
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter
from tests.capture.core.run.announcements import HOST, QUICK, announced, say_port
from tests.support.tapes.tapes import new_writer
from tests.support.waiting import until

KEY = "otel_torchdist/run/of this test"


class DeafStore:
    """A job's store that hides all questions from rank 0."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def clone(self) -> DeafStore:
        """Return a store that is as deaf."""
        return DeafStore(self._store.clone())

    def add(self, key: str, amount: int) -> int:
        """Hide the questions of other ranks."""
        return 0 if key == f"{KEY}/questions" else self._store.add(key, amount)


class OtherStore:
    """A store in Python whose methods take other arguments than torch's."""

    def clone(self) -> OtherStore:
        """Return itself."""
        return self

    def add(self, key: str) -> int:
        """Hide the questions of other ranks."""
        return 1


class BrokenStore:
    """A store in Python over a connection that is lost."""

    def clone(self) -> BrokenStore:
        """Fail as other libraries' stores do."""
        raise OSError("connection lost")


@dataclass(frozen=True)
class Agreeing:
    """A rank that agrees on a run's id."""

    agreement: RunIdAgreement
    tape: TapeWriter

    @property
    def run(self) -> tuple[int, RunIdState]:
        """Run id and its state on the tape."""
        reader = TapeReader.of_writer(self.tape)
        reader.poll()
        status = reader.status()
        return status.run_id, status.run_id_state


@contextlib.contextmanager
def agreeing(
    store: Any, directory: Path, rank: int = 0, has_met_rank_0: bool = True, meets_in: Path | None = None, **more: Any
) -> Iterator[Agreeing]:
    """A rank of two nodes, as a session starts it. It meets in the tape's directory, unless given another."""
    tape = new_writer(directory, rank=rank)
    place = RankAddress(rank, 4, (meets_in or directory) / tape.path.name, HOST)
    agreement = RunIdAgreement(
        SimpleNamespace(tape=tape),  # type: ignore[arg-type]  # of a recorder it takes the tape
        store,
        lambda: has_met_rank_0,
        lambda: False,
        lambda stopping: PeerDiscovery(place, stopping, {"LOCAL_WORLD_SIZE": "2"}, QUICK),
        KEY,
        **more,
    )
    try:
        yield Agreeing(agreement, tape)
    finally:
        agreement.stop()
        tape.close()


ThreadsOf = Callable[[str], set[threading.Thread]]


@pytest.fixture
def threads_of() -> ThreadsOf:
    """Return our threads with a given purpose that started in this test."""
    before = set(threading.enumerate())
    return lambda purpose: {
        one for one in threading.enumerate() if one not in before and one.name == f"otel-torchdist-{purpose}"
    }


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Job directories of two nodes, whose agents listen for every run that they have been given."""
    directories = [tmp_path / "node-0", tmp_path / "node-1"]
    for directory in directories:
        directory.mkdir()
    return directories


def have_met(directories: list[Path]) -> bool:
    """Return whether each node knows one other node."""
    for directory in directories:
        say_port(directory)
    known = [list(peers_files(directory).values()) for directory in directories]
    return all(len(files) == 1 and len(read_peers(files[0][0]).others) == 1 for files in known)


def test_before_any_collective(store: Any, nodes: list[Path]) -> None:
    """Ranks that hang in their first collective agree on an id, and their agents discover each other."""
    with (
        agreeing(store.clone(), nodes[1], 2, has_met_rank_0=False) as other,
        agreeing(store, nodes[0], 0, has_met_rank_0=False) as first,
    ):
        assert until(lambda: other.run[1] is RunIdState.AGREED)
        assert other.run == first.run
        assert until(lambda: have_met(nodes))


def test_rank_0_is_stuck(store: Any, nodes: list[Path]) -> None:
    """If rank 0 is stuck after setting the id, the id is provisional, and agents discover each other with it."""
    with (
        agreeing(DeafStore(store), nodes[0], 0, has_met_rank_0=False) as first,
        agreeing(store.clone(), nodes[1], 2, has_met_rank_0=False) as other,
    ):
        assert until(lambda: other.run == (first.run[0], RunIdState.PROVISIONAL))
        assert until(lambda: have_met(nodes))


def test_id_of_an_earlier_attempt(store: Any, nodes: list[Path]) -> None:
    """A rank earlier than rank 0 uses the leftover id provisionally, then the id that rank 0 publishes."""
    elsewhere, here = nodes
    with agreeing(store, elsewhere, 0) as earlier:
        left, _ = earlier.run
    with agreeing(store.clone(), here, 2, has_met_rank_0=False) as other:
        assert until(lambda: other.run == (left, RunIdState.PROVISIONAL))
        with agreeing(store, elsewhere, 0) as first:
            now, _ = first.run
            assert until(lambda: other.run == (now, RunIdState.AGREED))
            assert until(lambda: now in peers_files(here))
    assert now != left


def test_rank_0_of_an_attempt_that_should_be_over(store: Any, nodes: list[Path], threads_of: ThreadsOf) -> None:
    """Rank 0 of an earlier attempt stops answering once another attempt has set its id."""
    with agreeing(store, nodes[0], 0):
        [answers] = threads_of("run-id")
        with agreeing(store.clone(), nodes[0], 0) as first:
            for rank in (2, 3):
                with agreeing(store.clone(), nodes[1], rank, has_met_rank_0=False) as other:
                    assert until(lambda other=other: other.run == (first.run[0], RunIdState.AGREED))
            assert until(lambda: not answers.is_alive())  # it polls the store


def test_question_right_before_rank_0_ends(store: Any, tmp_path: Path) -> None:
    """Rank 0 answers a question that arrives just before its end."""
    with agreeing(store, tmp_path, first_pause_s=60.0) as one:
        question = store.add(f"{KEY}/questions", 1)
        one.agreement.stop()
        assert store.get(KEY).decode().rpartition("/")[2] == str(question)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    "unusable", [None, Store(), OtherStore(), BrokenStore()], ids=["none", "not cloned", "other arguments", "broken"]
)
def test_unusable_store(unusable: Any, rank: int, tmp_path: Path) -> None:
    """Without a usable store, each rank makes its own id immediately, marked as unagreed."""
    with agreeing(unusable, tmp_path, rank) as one:
        assert until(lambda: one.run[1] is RunIdState.UNAGREED)
        assert one.run[0]


def test_another_value_in_place_of_the_id(store: Any, tmp_path: Path) -> None:
    """A rank that reads an invalid value makes its own id."""
    store.set(KEY, "not an id")
    with agreeing(store, tmp_path, 2) as one:
        assert until(lambda: one.run[1] is RunIdState.UNAGREED)


def test_only_rank(store: Any, tmp_path: Path) -> None:
    """A single rank sets its id without a second connection to the store."""
    with contextlib.closing(TapeWriter(tmp_path, identify(0, 1, 1, 8))) as tape:
        recorder: Any = SimpleNamespace(tape=tape)
        agreement = RunIdAgreement(recorder, store, lambda: False, lambda: False, key=KEY)
        agreement.stop()
        assert Agreeing(agreement, tape).run[1] is RunIdState.AGREED
    assert store.check([KEY])
    assert not store.check([f"{KEY}/questions"])


def test_store_that_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture, threads_of: ThreadsOf) -> None:
    """If the store dies during discovery, there is one warning and no exception, and the run id stays."""
    hosts: list[Any] = [TCPStore(HOST, 0, is_master=True, wait_for_workers=False)]
    client = TCPStore(HOST, hosts[0].port, is_master=False)
    with agreeing(client, tmp_path) as one:
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        say_port(tmp_path)
        assert until(lambda: announced(client, next(iter(peers_files(tmp_path)))) == 1)
        hosts.clear()
        assert until(lambda: caplog.records)  # the thread may run before it is in the agreement's list
        assert until(lambda: not threads_of("peers"))
        warnings = [record.getMessage() for record in caplog.records if record.name == "otel_torchdist"]
        assert len(warnings) == 1
        assert warnings[0].startswith("the agents of this job's nodes cannot find each other: ")
        assert one.run[1] is RunIdState.AGREED
        assert one.tape.path.exists()


def test_something_else_in_the_store(
    store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, threads_of: ThreadsOf
) -> None:
    """An invalid agent entry in the store causes one warning, and ends the discovery."""
    with agreeing(store, tmp_path):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        (run,) = peers_files(tmp_path)
        store.set(store_key(run, "1"), "[1, 2]")
        store.add(store_key(run, "count"), 1)
        say_port(tmp_path)
        assert until(lambda: "it is not a peer" in caplog.text)
        assert until(lambda: not threads_of("peers"))
    assert [record.levelname for record in caplog.records if record.name == "otel_torchdist"] == ["WARNING"]


def test_rank_that_ends_meanwhile(
    store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, threads_of: ThreadsOf
) -> None:
    """A rank that ends while it waits for its agent is not delayed, and logs nothing."""
    with agreeing(store, tmp_path) as one:
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        one.agreement.stop()
        assert not threads_of("run-id") | threads_of("peers")
    assert caplog.records == []


def test_directory_that_is_gone(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unwritable job directory causes one warning, and the run id is agreed."""
    with agreeing(store, tmp_path, meets_in=tmp_path / "gone") as one:
        assert until(lambda: len(caplog.records) == 1)
        assert one.run[1] is RunIdState.AGREED
    (record,) = caplog.records
    assert (record.levelname, "gone" in record.getMessage()) == ("WARNING", True)


def test_ranks_that_are_threads(tmp_path: Path, threads_of: ThreadsOf) -> None:
    """Ranks that are threads of one process each start an agreement.

    No thread of ours is left inside torch at exit, where it would abort the process.
    """
    agreements, tape = Agreements(Groups(), None), new_writer(tmp_path, rank=1)
    for _ in range(3):
        recorder = SimpleNamespace(tape=tape)
        agreements.agree(recorder, HashStore())  # type: ignore[arg-type]  # no rank sets an id there: it keeps waiting
    assert len(threads_of("run-id")) == 3
    agreements.stops(has_failed=False)
    assert threads_of("run-id") == set()
    tape.close()
