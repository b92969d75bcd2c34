"""Files of each format as the version that introduced it writes them, kept in `data`: `NAME-NUMBER`, and its schema.

After a number in `otel_torchdist/formats.py` has been raised, `python -m tests.versions.recorded` adds the files of the
new number. Files of earlier numbers stay: later versions read them, or refuse them as such.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path

from otel_torchdist import formats
from otel_torchdist.agent.exchange.codec import answer_of
from otel_torchdist.agent.exchange.wire import Answer, Question, encode, wire_ruling
from otel_torchdist.agent.reading.checkpoint import Checkpoint, save
from otel_torchdist.judge.stall.events import Ruling
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.node.job.bundled import BundledMoment, BundleManifest
from otel_torchdist.node.job.description import RankDescription
from otel_torchdist.node.job.directory import CHECKPOINT_NAME
from otel_torchdist.sources.archive.format import SegmentDocument
from otel_torchdist.telemetry.metrics.durations import DurationHistogram
from tests.agent.exchange.messages.test_codec import eventful_world, snapshot
from tests.agent.reading.test_files import full_checkpoint
from tests.support.tapes.directories import memory_directory
from tests.support.worlds.fake_world import RUN
from tests.versions.jobs import finished_job
from tests.versions.releases import this_release
from tests.versions.schemas import Schema, schema_of

DATA = Path(__file__).parent / "data"
FORMATS = {
    "tape": formats.TAPE,
    "archive": formats.ARCHIVE,
    "bundle": formats.BUNDLE,
    "exchange": formats.EXCHANGE,
    "state": formats.STATE,
}


def schemas() -> dict[str, Schema]:
    """The schema of each format, as far as it is made of types that msgspec reads."""
    return {
        "tape": schema_of(RankDescription),
        "archive": schema_of(SegmentDocument),
        "bundle": schema_of(BundleManifest, BundledMoment),
        # Segments of archives are in the messages, too.
        "exchange": schema_of(Question, Answer) | {"archive": {"kind": "number", "number": formats.ARCHIVE.number}},
        "state": schema_of(Checkpoint, DurationHistogram),
    }


def files(name: str, number: int) -> Path:
    """The folder with the files of a number of a format."""
    return DATA / f"{name}-{number}"


def question() -> Question:
    """A question with everything that it can contain."""
    site = OperationId(Channel(RecordKind.OPERATION, "group"), 7)
    ruling = Ruling(Incident(RUN, "name", 3), 4, site, "rank 2 has not entered", {"a": "text", "b": 3})
    calls = ((Channel(RecordKind.OPERATION, "group"), 2),)
    return Question(3, True, (3, 4), wire_ruling(ruling), (1, 1 << 63), (2,), calls, "http://node7:9464/")


def main() -> None:
    """Write the files that are missing."""
    missing = {name for name, numbered in FORMATS.items() if not files(name, numbered.number).exists()}
    for name in missing:
        folder = files(name, FORMATS[name].number)
        folder.mkdir(parents=True)
        classes = (f"{json.dumps(cls)}: {json.dumps(entry)}" for cls, entry in sorted(schemas()[name].items()))
        (folder / "schema.json").write_text("{\n" + ",\n".join(classes) + "\n}\n")
        _write(name, folder)


def _write(name: str, folder: Path) -> None:
    if name == "exchange":
        (folder / "answer.msgpack").write_bytes(encode(answer_of(snapshot(eventful_world()), 1, True, 5)))
        (folder / "question.msgpack").write_bytes(encode(question()))
        return
    if name == "state":
        save(folder, full_checkpoint())
        (folder / CHECKPOINT_NAME).rename(folder / "state")
        return
    with memory_directory() as base, tempfile.TemporaryDirectory() as scratch:
        left = finished_job(this_release(), base, Path(scratch))
        if name == "bundle":
            shutil.copy(left.bundle, folder / "bundle.tar.gz")
        elif name == "archive":
            for number, file in enumerate(sorted(left.archive.rglob("*.segments"))):
                shutil.copy(file, folder / f"{number}.segments")
        else:
            with tarfile.open(folder / "job.tar.gz", "w:gz") as packed:
                for file in sorted(left.directory.iterdir()):
                    if file.suffix in (".tape", ".names", ".description"):
                        packed.add(file, file.name)


if __name__ == "__main__":
    main()
