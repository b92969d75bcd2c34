"""The files that an agent keeps beside the tapes: damaged, foreign, or gone."""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from otel_torchdist.agent.log_relay import LOG_NAME, MAX_BYTES, SILENT_CHECKS, LogRelay, log_position, relayed_position
from otel_torchdist.agent.reading import checkpoint
from otel_torchdist.agent.reading.checkpoint import Checkpoint
from otel_torchdist.agent.reading.followed_rank import ReadingState
from otel_torchdist.model.kinds import Flag, How, Phase, RecordKind
from otel_torchdist.model.operations import Operation, Splits, StepMark
from otel_torchdist.node.job.directory import CHECKPOINT_NAME, READER_LOCK_NAME
from otel_torchdist.show.serving.scrape_target import FOLDER, ScrapeTarget, withdraw_stale
from otel_torchdist.tape.reading.batch import TapeCursor
from otel_torchdist.telemetry.export.sinks import HeldSink
from otel_torchdist.telemetry.metrics.counts import RankCounts
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, Exemplar, TimedMessages
from otel_torchdist.telemetry.metrics.rank_series import MetricsState, SeriesState
from otel_torchdist.telemetry.metrics.snapshots import GroupInfo, GroupSnapshot
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.sampling import SamplerState
from otel_torchdist.telemetry.spans.segments import CutterState
from otel_torchdist.telemetry.spans.steps import SpansState
from tests.support.locks import held_elsewhere
from tests.support.receivers.memory_sink import MemorySink


def full_checkpoint() -> Checkpoint:
    """A checkpoint with everything that it can contain."""
    flags, splits = Flag.ASYNC | Flag.COALESCED | Flag.UNEVEN, Splits((1, 2), 2, 3)
    fields = (7, RecordKind.OPERATION, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, flags)
    operation = Operation(*fields, how=How.WAIT, phase=Phase.BACKWARD, splits=splits)
    steps, small = DurationHistogram(), TimedMessages()
    steps.observe(0.5)
    steps.add_exemplar(Exemplar(0xABC, 0.5, 12.0))
    small.observe(0.5, 12)
    metrics = MetricsState(
        series=(SeriesState("group", "all_reduce", 3, 12, (("4KiB", small),)),),
        groups=(GroupSnapshot("group", GroupInfo("default_pg", 2), True, None, 3),),
        folded=frozenset({4}),
        steps=steps,
        last_step=StepMark(8, 9, 10, 11),
        totals=RankCounts(untracked=1),
        communicating=(5, 6),
        blocked=(7, 8),
    )
    spans = SpansState(
        cutter=CutterState(100, None, 2, frozenset({5, 6})),
        sampler=SamplerState(3, True, False, frozenset({3}), 1),
        dropped=2,
        is_closed=False,
    )
    state = ReadingState(TapeCursor(9, (operation,), 1), spans, metrics)
    return Checkpoint({17: state}, frozenset({18}))


def test_checkpoint_is_read_back(tmp_path: Path) -> None:
    """Everything that is saved comes back, whichever Python saved it."""
    checkpoint.save(tmp_path, full_checkpoint())
    found = checkpoint.load(tmp_path)
    assert found is not None
    expected = full_checkpoint()
    assert found.done == expected.done
    assert found.ranks[17].cursor == expected.ranks[17].cursor
    assert found.ranks[17].spans == expected.ranks[17].spans
    [series] = found.ranks[17].metrics.series
    [(size, timed)] = series.sizes
    assert (series.entered, size, timed.message_bytes, timed.durations.sum_s) == (3, "4KiB", 12, 0.5)
    metrics = found.ranks[17].metrics
    assert timed.durations.counts == metrics.steps.counts == expected.ranks[17].metrics.steps.counts
    assert (metrics.communicating, metrics.blocked) == ((5, 6), (7, 8))
    assert list(metrics.steps.exemplars.values()) == [Exemplar(0xABC, 0.5, 12.0)]
    assert found.ranks[17].metrics.last_step == StepMark(8, 9, 10, 11)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_NAME]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign version", "code"])
def test_damaged_checkpoint(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """A file that no agent of this version wrote is one warning; nothing in it is executed."""
    checkpoint.save(tmp_path, full_checkpoint())
    path = tmp_path / CHECKPOINT_NAME
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-5],
            "flipped": content[:50] + bytes([content[50] ^ 1]) + content[51:],
            "empty": b"",
            "foreign version": sealed(content[4:].replace(b" state ", b" state 9", 1)),
            "code": sealed(content[4:].partition(b"\n")[0] + b"\n" + pickle.dumps(Harmful(tmp_path / "harm"))),
        }[damage]
    )
    assert checkpoint.load(tmp_path) is None
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{path} cannot be used (" in record.getMessage()
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "forged",
    [
        Checkpoint(ranks="x"),  # type: ignore[arg-type]
        Checkpoint({17: ReadingState(None, None, None)}),  # type: ignore[arg-type]
        Checkpoint({17: dataclasses.replace(full_checkpoint().ranks[17], cursor=TapeCursor("1", (), 0))}),  # type: ignore[arg-type]
    ],
    ids=["no ranks", "no state", "no number"],
)
def test_forged_checkpoint(tmp_path: Path, forged: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint with wrong types under a valid checksum is one warning: none of it reaches the agent."""
    checkpoint.save(tmp_path, forged)
    assert checkpoint.load(tmp_path) is None
    assert [record.getMessage().partition(" (Expected")[0] for record in caplog.records] == [
        f"{tmp_path / CHECKPOINT_NAME} cannot be used"
    ]


def test_checkpoint_without_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A sparse file of four TiB is not read."""
    with (tmp_path / CHECKPOINT_NAME).open("wb") as file:
        file.truncate(1 << 42)
    assert checkpoint.load(tmp_path) is None
    assert "it has more than" in caplog.text


def sealed(content: bytes) -> bytes:
    """Content with a valid checksum."""
    return zlib.crc32(content).to_bytes(4, "little") + content


class Harmful:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        """Return what `pickle` would call."""
        return Path.touch, (self.path,)


def test_link_in_place_of_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Links are neither followed nor written through."""
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / CHECKPOINT_NAME).symlink_to(other)
    assert checkpoint.load(tmp_path) is None
    assert len(caplog.records) == 1
    checkpoint.save(tmp_path, Checkpoint())
    assert other.read_text() == "precious"


def test_no_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first agent of a directory finds none, and does not report it."""
    assert checkpoint.load(tmp_path) == Checkpoint()
    assert not caplog.records


def test_written_down_before_it_leaves() -> None:
    """Spans are sent only after the checkpoint records them as sent; stall evidence stays marked as urgent."""
    sink = MemorySink()
    left: list[int] = []
    held = HeldSink(sink, lambda: left.append(len(sink.spans)))
    span = FinishedSpan("a", 1, 2, None, 3, 4, {})
    held.emit([span], urgent=True)
    assert sink.spans == []
    assert held.release()
    assert (left, sink.spans) == ([0], [span])
    assert not held.release()
    held.emit([FinishedSpan("b", 1, 3, None, 3, 4, {})])
    held.shutdown(1.0)
    assert left == [0, 1]
    assert len(sink.spans) == 2


def test_scrape_target(tmp_path: Path) -> None:
    """Prometheus finds host and port; the next agent finds the port; a job that is gone leaves no file."""
    (tmp_path / "job-1").mkdir()
    target = ScrapeTarget(tmp_path / "job-1")
    assert target.last_port() is None
    target.publish("127.0.0.1", 9464)
    [path] = (tmp_path / FOLDER).iterdir()
    assert json.loads(path.read_text()) == [{"targets": ["127.0.0.1:9464"], "labels": {"torchdist_job": "job-1"}}]
    assert target.last_port() == 9464
    withdraw_stale(tmp_path)
    assert path.exists()
    (tmp_path / "job-1").rmdir()
    withdraw_stale(tmp_path)
    assert not path.exists()
    target.withdraw()


@pytest.mark.parametrize("name", [READER_LOCK_NAME, "00000000000000aa.tape"])
def test_target_of_an_agent_that_was_killed(tmp_path: Path, name: str) -> None:
    """The file is removed once neither the agent nor a rank is left, also if the job's directory remains."""
    directory = tmp_path / "job-0123456789abcdef"
    directory.mkdir()
    (directory / READER_LOCK_NAME).touch()
    ScrapeTarget(directory).publish("127.0.0.1", 9464)
    with held_elsewhere(directory / name):
        withdraw_stale(tmp_path)
        assert ScrapeTarget(directory).last_port() == 9464
    withdraw_stale(tmp_path)
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]:1"), ("localhost", "localhost:1"), ("0.0.0.0", f"{socket.gethostname()}:1")]
)
def test_host_that_is_shown(tmp_path: Path, host: str, shown: str) -> None:
    """The published target can be connected to, which every address cannot."""
    ScrapeTarget(tmp_path / "job").publish(host, 1)
    assert json.loads((tmp_path / FOLDER / "job.json").read_text())[0]["targets"] == [shown]


@pytest.mark.parametrize("content", ["", "[]", "[{}]", '[{"targets": [3]}]', '{"a": 1}', '[{"targets": ["a:b"]}]'])
def test_damaged_target(tmp_path: Path, content: str) -> None:
    """A malformed file names no port."""
    target = ScrapeTarget(tmp_path / "job")
    target.publish("localhost", 1)
    (tmp_path / FOLDER / "job.json").write_text(content)
    assert target.last_port() is None


def test_warnings_are_passed_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Warnings of the agent come once, whole lines only, and from the first byte of a log that was rotated."""
    caplog.set_level(logging.DEBUG)
    log = tmp_path / LOG_NAME
    log.write_text("12:00:00 WARNING of an agent before\n")
    relay = LogRelay(tmp_path)
    relay.pass_on()
    with log.open("a") as file:
        file.write("12:00:01 INFO reading\n12:00:02 WARNING stall: rank 2 is late\n12:00:03 ERROR un")
    relay.pass_on()
    relay.pass_on()
    with log.open("a") as file:
        file.write("finished\n")
    relay.pass_on()
    log.rename(tmp_path / "agent.log.1")
    log.write_text("12:00:04 WARNING after the rotation\n")
    relay.pass_on()
    relay.close()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "stall: rank 2 is late"),
        ("ERROR", "unfinished"),
        ("WARNING", "after the rotation"),
    ]


def test_rank_that_takes_over_relays_nothing_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next rank continues where the last one stopped, also if it has not looked since."""
    log = tmp_path / LOG_NAME
    first, second = LogRelay(tmp_path), LogRelay(tmp_path)
    log.write_text("12:00:01 WARNING stall: rank 2 is late\n")
    first.close()
    with log.open("a") as file:
        file.write("12:00:02 WARNING stall over\n")
    second.close()
    assert caplog.messages == ["stall: rank 2 is late", "stall over"]


@pytest.mark.parametrize(("handlers", "shown"), [([], []), (["stream"], []), (["file"], ["stall"])])
def test_announced_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: list[str], shown: list[str]
) -> None:
    """What is on the job's standard error already is only relayed into logs that people keep elsewhere."""
    logger = logging.getLogger("otel_torchdist")
    kept = logging.FileHandler(tmp_path / "kept.log", delay=False)
    made: dict[str, logging.Handler] = {"file": kept, "stream": logging.StreamHandler(sys.stderr)}
    monkeypatch.setattr(logger, "handlers", [made[handler] for handler in handlers])
    monkeypatch.setattr(logger, "propagate", False)
    relay = LogRelay(tmp_path)
    (tmp_path / LOG_NAME).write_text("12:00:01 ANNOUNCED stall\n")
    relay.close()
    kept.close()
    assert (tmp_path / "kept.log").read_text().splitlines() == shown


def test_notice_is_relayed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What an agent could not write itself is logged as it is, at the latest when the rank ends, and that shows."""
    relay = LogRelay(tmp_path)
    assert relayed_position(tmp_path) == log_position(tmp_path) == (0, 0, 0)
    (tmp_path / LOG_NAME).write_text("12:00:01 NOTICE otel_torchdist: rank 2 is late\n")
    assert relayed_position(tmp_path) == (0, 0, 0)
    relay.close()
    assert caplog.messages == ["otel_torchdist: rank 2 is late"]
    assert relayed_position(tmp_path) == log_position(tmp_path) > (0, 0, 0)


def test_directory_that_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Warnings keep coming: only the name is removed, and the agent and the relay both have the file open."""
    directory = tmp_path / "job"
    directory.mkdir()
    with (directory / LOG_NAME).open("w", buffering=1) as log:
        relay = LogRelay(directory)
        relay.pass_on()
        shutil.rmtree(directory)
        log.write("12:00:00 WARNING stall: rank 2 is late\n")
        relay.pass_on()
        log.write("12:00:00 WARNING and on\n")
        relay.close()
    assert caplog.messages == ["stall: rank 2 is late", "and on"]


def test_flood_of_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When a log grows faster than it is read, only its end is passed on."""
    relay = LogRelay(tmp_path)
    (tmp_path / LOG_NAME).write_text("12:00:00 WARNING again\n" * (MAX_BYTES // 10))
    relay.pass_on()
    relay.close()
    assert 0 < len(caplog.records) <= MAX_BYTES // 23 + 1


OTHER_RANK = """
import logging, pathlib, sys
from otel_torchdist.agent.log_relay import LogRelay
logging.basicConfig(stream=sys.stdout, format="%(message)s")
relay = LogRelay(pathlib.Path(sys.argv[1]))
for line in sys.stdin:
    relay.pass_on()
    print("looked", flush=True)
"""


class OtherRank:
    """A rank of the same node that polls on request."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER_RANK, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def look(self) -> list[str]:
        """Have it poll; returns what it passed on."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        lines: list[str] = []
        while (line := self.process.stdout.readline().strip()) != "looked":
            lines.append(line)
        return lines


def test_another_stands_in_for_a_rank_that_does_not_check(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While the GIL of the responsible rank is held, warnings are passed on once by another; then that rank resumes."""
    log = tmp_path / LOG_NAME
    log.touch()
    other = OtherRank(tmp_path)
    relay = LogRelay(tmp_path)

    def warn(text: str) -> None:
        with log.open("a") as file:
            file.write(f"12:00:00 WARNING {text}\n")

    try:
        assert other.look() == []
        relay.pass_on()
        warn("before")
        assert other.look() == ["before"]
        relay.pass_on()
        warn("stall")
        for _ in range(SILENT_CHECKS - 1):
            relay.pass_on()
            assert caplog.messages == []
        relay.pass_on()
        assert caplog.messages == ["stall"]
        assert other.look() == []
        warn("just then")
        relay.pass_on()
        assert caplog.messages == ["stall", "just then"]
        warn("after")
        assert "after" in other.look()
        relay.pass_on()
        assert "after" not in caplog.messages
    finally:
        other.process.communicate()
    warn("of the next one")
    relay.pass_on()
    relay.close()
    assert caplog.messages[2:] == ["of the next one"]
