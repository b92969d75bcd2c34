"""Files of all formats so far, as they were written: read today, or refused as files of another format.

What is written today is compatible with what was written when the number of its format was introduced.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.agent.exchange.codec import views_of
from otel_torchdist.agent.exchange.wire import decode_answer, decode_question
from otel_torchdist.agent.reading import checkpoint
from otel_torchdist.errors import RunError
from otel_torchdist.formats import NumberedFormat
from otel_torchdist.node.job.directory import CHECKPOINT_NAME
from otel_torchdist.runs import open_run
from tests.support.worlds.fake_world import RUN
from tests.versions.jobs import RANKS
from tests.versions.recorded import DATA, FORMATS, files, question, schemas
from tests.versions.schemas import incompatible

KEPT = sorted(path for path in DATA.iterdir() if path.is_dir())


def read_calls(path: Path, _: Path) -> None:
    """Read a run of two ranks with three calls each."""
    with open_run(path).histories() as ranks:
        calls = [[call.name for call in rank.operations] for rank in ranks]
    assert calls == [["all_reduce"] * 3] * RANKS


def read_job(folder: Path, scratch: Path) -> None:
    """Read the tapes of a job directory."""
    directory = scratch / "job-1"
    with tarfile.open(folder / "job.tar.gz") as packed:
        packed.extractall(directory, filter="data")
    directory.chmod(0o700)
    read_calls(directory, scratch)


def read_messages(folder: Path, _: Path) -> None:
    """Read a question and an answer."""
    assert decode_question((folder / "question.msgpack").read_bytes()) == question()
    views = views_of(decode_answer((folder / "answer.msgpack").read_bytes()), RUN, 5, 5)
    assert [view.rank for view in views] == [0, 1, 2, 3]
    assert [operation.label for operation in views[0].open] == ["läufer"]


def read_state(folder: Path, scratch: Path) -> None:
    """Read what an agent has kept."""
    shutil.copy(folder / "state", scratch / CHECKPOINT_NAME)
    state = checkpoint.load(scratch)
    assert state is not None
    assert (state.ranks[17].cursor.next_number, state.done) == (9, {18})


READ: dict[str, Callable[[Path, Path], None]] = {
    "tape": read_job,
    "archive": read_calls,
    "bundle": lambda folder, scratch: read_calls(folder / "bundle.tar.gz", scratch),
    "exchange": read_messages,
    "state": read_state,
}


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_files_of_each_number(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files of the current number are read in full; older ones are refused as such, with both numbers."""
    name, _, number = folder.name.rpartition("-")
    if int(number) == FORMATS[name].number:
        READ[name](folder, tmp_path)
    elif name == "state":
        shutil.copy(folder / "state", tmp_path / CHECKPOINT_NAME)
        assert checkpoint.load(tmp_path) is None
        assert f"state format {number}, of otel-torchdist " in caplog.text
    elif name != "exchange":  # a message says nothing about itself: its path has the number
        with pytest.raises(RunError, match=f"{FORMATS[name].name} {number}, of "):
            READ[name](folder, tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_today_is_compatible(name: str) -> None:
    """Since the number was introduced, only fields with defaults were added: else `formats.py` needs a higher number.

    After raising it, `python -m tests.versions.recorded` writes the files for this test.
    """
    folder = files(name, FORMATS[name].number)
    assert folder.is_dir(), "run `python -m tests.versions.recorded`"
    earlier = json.loads((folder / "schema.json").read_text())
    assert incompatible(earlier, json.loads(json.dumps(schemas()[name]))) == []


def test_refusals() -> None:
    """The line names both numbers and versions, as far as they are known, and what to do."""
    numbered = NumberedFormat("bundle format", 3)
    assert numbered.refusal(4).endswith("which reads bundle format 3: upgrade it, or read it with the newer one")
    assert numbered.refusal(2).endswith("which reads bundle format 3: read it with the older one")
    assert numbered.refusal(2).startswith("bundle format 2, of an older otel-torchdist; this is otel-torchdist ")
    assert numbered.refusal(4, "1.2.0").endswith("reads bundle format 3: read it with version 1.2.0")


def test_incompatible_schemas() -> None:
    """A field without a default, a changed type, a removed field, and any change by position are reported."""
    earlier = {
        "Named": {"kind": "fields by name", "fields": {"a": ["int", True], "b": ["int", False]}},
        "Placed": {"kind": "fields by position", "fields": {"a": ["int", True]}},
        "Kind": {"kind": "values", "values": [1, 2]},
    }
    later = json.loads(json.dumps(earlier))
    later["Named"]["fields"]["c"] = ["str", False]
    later["Other"] = {"kind": "values", "values": [1]}
    assert incompatible(earlier, later) == []
    later["Named"]["fields"] = {"a": ["str", True], "d": ["int", True]}
    later["Placed"]["fields"]["b"] = ["int", False]
    later["Kind"]["values"].append(3)
    assert incompatible(earlier, later) == [
        "Kind differs",
        "Named.a differs",
        "Named.b differs",
        "Named.d is new, without a default",
        "Placed differs",
    ]
