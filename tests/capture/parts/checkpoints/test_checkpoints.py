"""Checkpoints on the tapes of two ranks that save and load in the usual ways."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from torch import serialization
from torch.distributed.checkpoint import state_dict_saver, utils
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from otel_torchdist.capture.core.torch_api import CHECKPOINT_LOGGER
from otel_torchdist.capture.parts.checkpoints.first_use import Checkpoints
from otel_torchdist.capture.parts.checkpoints.open_activities import MAX_IN_STEP, MAX_STAGES, MAX_TEXT, MAX_TEXTS
from otel_torchdist.model.activity_kinds import CHECKPOINT_OPERATIONS
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.rank_state.occupations import STAGES
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans
from tests.support.launch.jobs import Jobs
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.own_tape import OwnTape
from tests.support.tapes.recorded import RecordedTape

QUIET = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage is")
"""What torch warns of where there is no group, and 2.8 whenever it saves."""


@dataclass(frozen=True)
class Saved:
    """What one rank has recorded, and what it has found on disk itself.

    Attributes:
        tape: Its tape.
        facts: What it printed.
    """

    tape: RecordedTape
    facts: dict[str, Any]

    def only(self, operation: str, name: str) -> Activity:
        """Return the only checkpoint of this name."""
        [found] = [
            one
            for one, detail in self.tape.activities
            if CHECKPOINT_OPERATIONS.get(one.kind) == operation and detail == f"{self.facts['base']}/{name}"
        ]
        return found

    def within(self, outer: Activity) -> dict[str, Activity]:
        """Return the stages directly within an activity."""
        return {detail: one for one, detail in self.tape.activities if one.parent == outer.number}


@pytest.fixture(scope="module")
def ranks(jobs: Jobs) -> list[Saved]:
    """Both ranks of the job."""
    job = jobs.run("checkpoints", 2)
    return [Saved(tape, json.loads(done.out.splitlines()[-1])) for tape, done in zip(job.tapes, job.ranks, strict=True)]


def test_stages_of_a_save(ranks: list[Saved]) -> None:
    """A save has its stages, nested as called. Stages that rank 0 runs for all ranks are on rank 0 only."""
    for rank, saved in enumerate(ranks):
        save = saved.only("save", "first")
        stages = saved.within(save)
        assert list(stages) == ["_stateful_to_state_dict", "plan", "write"]
        mine = ["global_step"] if rank == 0 else []
        assert list(saved.within(stages["plan"])) == ["local_step", *mine]
        mine = ["finish_checkpoint"] if rank == 0 else []
        assert list(saved.within(stages["write"])) == ["write_data", *mine]
    everything = [activity for saved in ranks for activity, _ in saved.tape.activities]
    assert {one.how for one in everything} == {How.CALL, How.FAILED}
    assert {detail for one, detail in ranks[0].tape.activities if one.kind is ActivityKind.CHECKPOINT_STAGE} <= STAGES
    assert [saved.tape.lost for saved in ranks] == [0, 0]


@pytest.mark.parametrize("name", ["first", "second"])
def test_bytes_and_files_are_those_on_disk(ranks: list[Saved], name: str) -> None:
    """Each rank's save and write stage have the bytes and number of the files that it has written."""
    for saved in ranks:
        save = saved.only("save", name)
        write_data = saved.within(saved.within(save)["write"])["write_data"]
        assert [save.message_bytes, save.files] == saved.facts[name]
        assert [write_data.message_bytes, write_data.files] == saved.facts[name]
        assert saved.facts[name][0] > 100_000


def test_load(ranks: list[Saved]) -> None:
    """Each rank's load has the bytes that both ranks have written."""
    for saved in ranks:
        load = saved.only("load", "first")
        assert load.message_bytes == sum(one.facts["first"][0] for one in ranks)
        assert load.files == 2
        assert list(saved.within(load)) == ["plan", "read"]
        assert list(saved.within(saved.within(load)["read"])) == ["read_data"]


def test_async_save(ranks: list[Saved]) -> None:
    """An asynchronous save lasts in the caller until the call returns.

    The save itself is recorded on another thread.
    """
    for saved in ranks:
        call, save = saved.only("async_save", "second"), saved.only("save", "second")
        assert {"stage_state_dict", "maybe_synchronize_staging"} <= set(saved.within(call))
        assert call.thread != save.thread
        assert save.parent == 0
        assert (call.completed_ns or 0) < (save.completed_ns or 0)


def test_files_of_torch_save(ranks: list[Saved]) -> None:
    """Files saved by path are recorded with their size. Buffers, streams and DCP's own files are not."""
    for rank, saved in enumerate(ranks):
        names = [detail for one, detail in saved.tape.activities if one.kind is ActivityKind.TORCH_SAVE]
        base = saved.facts["base"]
        assert names == [f"{base}/rank{rank}.pt", f"{base}/no such folder/file.pt"]
        for operation in ("torch.save", "torch.load"):
            activity = saved.only(operation, f"rank{rank}.pt")
            assert (activity.message_bytes, activity.files) == (saved.facts["file"], 1)


def test_failures(ranks: list[Saved]) -> None:
    """A failed save ends its stage with the error on the failing rank, and the whole save on both ranks."""
    assert [saved.facts["error"] for saved in ranks] == [[1], [1]]
    assert [saved.facts["no folder"] for saved in ranks] == ["RuntimeError"] * 2
    for rank, saved in enumerate(ranks):
        save = saved.only("save", "full")
        write = saved.within(save)["write"]
        write_data = saved.within(write)["write_data"]
        assert (save.how, write.how) == (How.FAILED, How.FAILED)
        assert write_data.how is (How.FAILED if rank == 1 else How.CALL)
        assert saved.only("torch.save", "no such folder/file.pt").how is How.FAILED


def test_a_save_within_another(ranks: list[Saved]) -> None:
    """A save that a state dict triggers is nested in the stage that reads the state dict."""
    for rank, saved in enumerate(ranks):
        outer = saved.only("save", "outer")
        asking = saved.within(outer)["_stateful_to_state_dict"]
        [inner] = saved.within(asking).values()
        assert inner == saved.only("save", f"inner{rank}")
        assert list(saved.within(inner)) == ["_stateful_to_state_dict", "plan", "write"]


def test_bounds(ranks: list[Saved]) -> None:
    """The number of records per step is bounded. A name that is long and no valid UTF-8 is shortened at its start."""
    for rank, saved in enumerate(ranks):
        names = [detail for one, detail in saved.tape.activities if one.kind is ActivityKind.CHECKPOINT_SAVE]
        assert len([name for name in names if f"/many{rank}-" in name]) == MAX_IN_STEP
        [odd] = [name for name in names if name.endswith("xxx")]
        assert len(odd) == MAX_TEXT
        assert odd.startswith("…")


def test_spans(ranks: list[Saved]) -> None:
    """The spans have storage and error of a save, and the error of the failed stage."""
    reader, sink = TapeReader(ranks[1].tape.path), MemorySink()
    spans = RankSpans(reader, sink, StepSampler(ALWAYS_ON, 1_000, 0, 1))
    now_ns = time.monotonic_ns()
    spans.consume(reader.poll(), reader.status(), now_ns)
    spans.close(now_ns)
    reader.close()
    base, save = ranks[1].facts["base"], "checkpoint save"
    saves = {str(span.attributes.get(semconv.CHECKPOINT_ID)): span for span in sink.spans if span.name == save}
    assert saves[f"{base}/first"].attributes[semconv.CHECKPOINT_STORAGE] == "FileSystemWriter"
    assert (
        saves[f"{base}/full"].error == f"{save} raised CheckpointException: OSError: [Errno 28] No space left on device"
    )
    [failed] = [span for span in sink.spans if span.attributes.get(semconv.ERROR_TYPE) == "OSError"]
    assert failed.error == "write_data raised OSError: [Errno 28] No space left on device"


class Rank(OwnTape):
    """Checkpoints of this process, recorded in Python on a tape of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, capacity=4096)
        self.checkpoints = Checkpoints(self.patches)
        self.checkpoints.hook(self.patches)
        self.checkpoints.begins(self.recorder)
        recording = self.checkpoints.begin()
        self.activities, self.distributed = recording.activities, recording.distributed

    def ended(self) -> list[tuple[str, Activity]]:
        """Return the activities that ended since the last call, with their texts."""
        batch = self.reader.poll()
        return [(self.reader.names.text(one.detail) or "", one) for one in batch.activities_ended]

    def unhook(self) -> None:
        """Undo the hooks that `patches` does not restore."""
        self.checkpoints.unhook()


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    """Checkpoints of this process are recorded."""
    with contextlib.closing(Rank(memory)) as rank:
        yield rank


def save(path: object, **more: Any) -> None:
    """Save something as a process without a group."""
    state_dict_saver.save({"one": torch.ones(1)}, checkpoint_id=path, no_dist=True, **more)  # pyright: ignore[reportArgumentType]


@QUIET
def test_left_by_what_is_no_error(rank: Rank, tmp_path: Path) -> None:
    """Ctrl-C in a stage ends it and its parents as abandoned, and reaches the program."""

    class Interrupted(FileSystemWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(BaseException, match="KeyboardInterrupt"):  # torch wraps it
        save(None, storage_writer=Interrupted(tmp_path / "x"))
    found = dict(rank.ended())
    assert {found[name].how for name in ("write_data", "write", str(tmp_path / "x"))} == {How.ABANDONED}
    assert rank.activities.current is None


@QUIET
def test_storages_of_others(rank: Rank, tmp_path: Path) -> None:
    """A custom writer whose results are unlike torch's is recorded without bytes, and works as before."""

    class Odd(FileSystemWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            future: Any = torch.futures.Future[Any]()
            future.set_result([object()])
            return future

        def finish(self, metadata: Any, results: Any) -> None:
            assert len(results[0]) == 1

    save(None, storage_writer=Odd(tmp_path / "x"))
    found = dict(rank.ended())
    assert (found["write_data"].how, found["write_data"].files) == (How.CALL, 0)
    assert rank.reader.names.text(found[str(tmp_path / "x")].storage) == "Odd"


@QUIET
def test_many_names(rank: Rank, tmp_path: Path) -> None:
    """A job with an unlimited number of saves does not fill the dictionary: later names lose their digits."""
    before = rank.recorder.tape.names.intern("before")
    for nth in range(MAX_TEXTS + 40):
        rank.activities.begin(ActivityKind.CHECKPOINT_SAVE, f"/ckpt/step-{nth}", nth)
        rank.activities.end(nth, How.CALL)
        rank.recorder.step += 1
    assert rank.ended()[-1][0] == "/ckpt/step-#"
    assert rank.recorder.tape.names.intern("after") - before < MAX_TEXTS + 8


def test_many_stages(rank: Rank) -> None:
    """The number of stages per checkpoint is bounded. The checkpoint's end is recorded."""
    rank.activities.begin(ActivityKind.CHECKPOINT_SAVE, "x", "save")
    for nth in range(MAX_STAGES + 10):
        rank.activities.begin(ActivityKind.CHECKPOINT_STAGE, "stage", nth)
        rank.activities.end(nth, How.CALL)
    rank.activities.end("save", How.CALL)
    assert len(rank.ended()) == MAX_STAGES + 1


def test_left_without_a_word(rank: Rank) -> None:
    """Activities without an end message end after two checks that find their thread outside. Others stay open."""
    thread = threading.Thread(target=rank.activities.begin, args=(ActivityKind.CHECKPOINT_SAVE, "gone", "key"))
    thread.start()
    thread.join()
    rank.activities.end_abandoned(min_age_ns=0)
    assert rank.ended() == []
    rank.activities.end_abandoned(min_age_ns=0)
    assert [(name, one.how) for name, one in rank.ended()] == [("gone", How.ABANDONED)]


@QUIET
def test_silent_logger(rank: Rank, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the program disables torch's logger, one warning says what is missing, and the save works."""
    logging.getLogger(CHECKPOINT_LOGGER).disabled = True
    try:
        rank.distributed.check()
        assert caplog.records == []  # it may never save
        for name in ("x", "y"):
            save(tmp_path / name)
    finally:
        logging.getLogger(CHECKPOINT_LOGGER).disabled = False
    [record] = [one for one in caplog.records if one.name == "otel_torchdist"]
    assert record.getMessage().startswith(f"checkpoints are not recorded: the logger {CHECKPOINT_LOGGER} is disabled")
    assert rank.ended() == []


@QUIET
@pytest.mark.parametrize(
    ("owner", "missing", "said"),
    [
        (
            utils,
            "_DistWrapper",
            "this torch has no torch.distributed.checkpoint.utils._DistWrapper: the sizes of checkpoints are not",
        ),
        (
            utils._DistWrapper,
            "all_gather",
            "this torch has no torch.distributed.checkpoint.utils._DistWrapper.all_gather: the sizes of checkpoints",
        ),
        (
            serialization,
            "_open_zipfile_reader",
            "this torch has no torch.serialization._open_zipfile_reader: files of",
        ),
    ],
)
def test_parts_of_torch_that_are_missing(
    memory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    missing: str,
    said: str,
) -> None:
    """If torch lacks a function, one warning says what is unknown. A save is recorded with its stages."""
    original = getattr(owner, missing)
    monkeypatch.delattr(owner, missing)
    with contextlib.closing(Rank(memory)) as rank:
        if owner is not utils:  # torch itself goes on; of `utils` its modules have the class already
            monkeypatch.setattr(owner, missing, original, raising=False)
        save(tmp_path / "x")
        found = dict(rank.ended())
    assert [one.getMessage().startswith(said) for one in caplog.records if one.name == "otel_torchdist"] == [True]
    assert {"write_data", str(tmp_path / "x")} <= set(found)


@QUIET
def test_import_under_way(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If our thread checks while another thread imports DCP, the first save still has its bytes."""
    original = utils._DistWrapper
    monkeypatch.delattr(utils, "_DistWrapper")
    with contextlib.closing(Rank(memory)) as rank:
        monkeypatch.setattr(utils, "_DistWrapper", original, raising=False)
        save(tmp_path / "x")
        written = {name: one.message_bytes for name, one in rank.ended()}
    assert written["write_data"] > 0
    assert [one for one in caplog.records if one.name == "otel_torchdist"] == []


def test_full_disk_at_the_end_of_a_file(rank: Rank) -> None:
    """A file that does not fit on the disk when it is closed has failed, with torch's own exception."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(RuntimeError):
        torch.save(torch.ones(100_000), "/dev/full")
    [(name, activity)] = rank.ended()
    assert (name, activity.how) == ("/dev/full", How.FAILED)
