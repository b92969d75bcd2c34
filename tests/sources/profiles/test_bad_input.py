"""Traces that are damaged, hostile, of other tools, or of several recordings: what can be read is, with a sentence."""

from __future__ import annotations

import gzip
import json
import random
import re
import resource
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.sources.profiles.groups import ProfiledGroups
from otel_torchdist.sources.profiles.history import histories_of
from otel_torchdist.sources.profiles.reading import document
from otel_torchdist.sources.profiles.reading.reader import read_profiles
from tests.sources.profiles.made import MadeGroup, MadeTrace
from tests.sources.profiles.reading_traces import histories, shown

PAIR = {"default": MadeGroup("0", "default_pg", (0, 1))}
CUT_OFF = "its end is missing or damaged: it is read up to that point"


def trace_of(rank: int = 0, calls: int = 3, first_step: int = 2, world_size: int = 2) -> MadeTrace:
    """A trace of one step with some calls."""
    trace = MadeTrace(rank, world_size, PAIR)
    with trace.step(first_step):
        for _ in range(calls):
            trace.call("allreduce", "default", 64)
    return trace


def text_of(trace: MadeTrace) -> str:
    """The trace as the profiler formats it."""
    return json.dumps(trace.document(), indent=2)


def notes_of(path: Path) -> list[str]:
    """What is reported, without the path."""
    return [note.replace(str(path), "PATH") for note in read_profiles([path]).notes]


def calls_in(path: Path) -> int:
    """How many calls are read."""
    return sum(len(profile.calls) for profile in read_profiles([path]).profiles)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("indent", [None, 2])
def test_truncated(tmp_path: Path, share: float, indent: int | None) -> None:
    """A file that was cut off anywhere is read up to there, in whatever way it is formatted."""
    trace = trace_of(calls=400)
    text = json.dumps(trace.document(), indent=indent)
    path = tmp_path / "rank_0.json"
    path.write_text(text[: int(share * len(text))])
    assert notes_of(path) == [f"PATH: {CUT_OFF}"]
    assert calls_in(path) == pytest.approx(400 * share, abs=12)


def test_truncated_archive_of_one(tmp_path: Path) -> None:
    """The same for a compressed file, of which the end is missing."""
    path = tmp_path / "rank_0.json.gz"
    content = gzip.compress(text_of(trace_of(calls=2_000)).encode())
    path.write_bytes(content[: len(content) // 2])
    assert notes_of(path) == [f"PATH: {CUT_OFF}"]
    assert 500 < calls_in(path) < 1_500


def test_what_the_profiler_itself_writes_wrongly(tmp_path: Path) -> None:
    """Numbers that are none, bare backslashes and control characters in names do not make a trace unreadable."""
    trace = trace_of()
    trace.operator("PLACE")
    trace.events[-1]["args"]["est. achieved occupancy %"] = 4711
    text = text_of(trace).replace("4711", "-nan").replace("PLACE", r"C:\users\x" + "\x01")
    path = tmp_path / "rank_0.json"
    path.write_text(text)
    assert notes_of(path) == []
    assert calls_in(path) == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", None),
        ('{"traceEvents": 3}', "its events are not a list"),
        ('{"traceEvents": [' + "[" * 100_000,
         "it is damaged (maximum recursion depth exceeded while deserializing an object)"),
        ('{"schemaVersion": 1, "distributedInfo": {"rank": 0}}', "it holds neither events nor nodes"),
        ('{"schemaVersion": 1, "traceEvents": []}', "neither its name nor its `distributedInfo` states a rank"),
        ('{"schemaVersion": 1, "distributedInfo": {"rank": -3, "world_size": 1e99}, "traceEvents": []}',
         "neither its name nor its `distributedInfo` states a rank"),
        ('{"traceEvents": [{"name": "TimerBase", "ph": "X", "cat": "blink", "ts": 1, "dur": 2}]}',
         "it is not a trace of PyTorch's profiler"),
        ('{"displayTimeUnit": "ns", "metadata": {"highres-ticks": true}, "traceEvents": []}',
         "it is not a trace of PyTorch's profiler"),
        ('{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "neither its name nor its calls state a rank"),
    ],
)  # fmt: skip
def test_no_trace(tmp_path: Path, content: str, reason: str | None) -> None:
    """A file that is none gets one sentence, with the reason; what looks like no trace at all is left alone."""
    path = tmp_path / "trace.json"
    path.write_text(content)
    lines = notes_of(path)
    assert lines == ([f"PATH: {reason}"] if reason else [])
    assert read_profiles([path]).profiles == ()


def test_hostile_values(tmp_path: Path) -> None:
    """Values that cannot be cost their event or nothing, never the trace; names are made printable."""
    trace = trace_of()
    trace.call("allreduce", "default", 64)["Process Group Description"] = "a\x1b[31m\u202e"
    good = len([event for event in trace.events if event["name"] == "record_param_comms"])
    for key, value in (
        ("In msg nelems", "many"), ("Group size", [1]), ("External id", 1 << 80), ("Process Group Name", {"a": 1}),
        ("Global rank stride", 1.5),
    ):  # fmt: skip
        trace.call("allreduce", "default", 64)
        trace.events[-3]["args"][key] = value
    for key, value in (("Group size", -5), ("In msg nelems", 1 << 70 >> 8), ("Process Group Ranks", "[" * 9_999)):
        trace.call("broadcast", "default", 64)
        trace.events[-3]["args"][key] = value
    trace.events.append({"name": 17, "ph": "X"})
    trace.events.append({"name": "record_param_comms", "ph": "X", "ts": 1e300, "args": {}})
    document_ = trace.document()
    document_["distributedInfo"]["pg_config"] += [
        {"pg_name": "8", "pg_size": 1 << 60, "ranks": [1 << 60]},
        {"pg_name": "9", "pg_size": 2, "ranks": [0, 0]},
        17,
    ]
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps(document_))
    [note] = notes_of(path)
    assert note.startswith("PATH: 6 parts are invalid and left out (")
    profiles = read_profiles([path]).profiles
    [history] = histories_of(profiles, ProfiledGroups(profiles))
    assert sum(view.name == "all_reduce" for view in history.operations) >= good
    names = {group.name.description for group in history.groups}
    assert all(name.isprintable() for name in names)


def test_too_large() -> None:
    """The unpacked size of a file is bounded; the sentence says what to do."""
    content = gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * (2 << 20))
    with pytest.raises(document.TraceError, match="it unpacks to more than 1 MiB; trace fewer steps"):
        document.unpacked(content, 1 << 20)


def test_a_billion_items(tmp_path: Path) -> None:
    """A short file that unpacks to a list of numbers is refused before they are objects."""
    path = tmp_path / "rank_0.json.gz"
    path.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [1' + b",1" * (16 << 20) + b"]}", 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert notes_of(path) == ["PATH: its events are not objects, or one of them has more than 16 MiB"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.parametrize(
    "value", [rb"\n\\,", *(pytest.param(one, marks=pytest.mark.thorough) for one in (rb"\x,", rb"\u,", rb"\u00e4,"))]
)
def test_mending_in_pieces(value: bytes) -> None:
    """A trace that has to be mended everywhere takes memory for its bytes, not for each place that is mended."""
    event = b'{"name":"%b"},' % (value * 50_000)
    head = b'{"schemaVersion":1,"a":nan,"distributedInfo":{"rank":0},"traceEvents":['
    content = head + event * ((8 << 20) // len(event)) + b"{}]}"
    tracemalloc.start()
    try:
        _, damage = document.open_document(content)
        taken_mib = tracemalloc.get_traced_memory()[1] >> 20
    finally:
        tracemalloc.stop()
    assert damage == ""
    assert taken_mib < 48


def test_mended_alike() -> None:
    """Wherever pieces end, the outcome is that of mending escape by escape."""
    escapes = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
    no_numbers = re.compile(rb"(?<=[:\[,\s])-?(?:nan|NaN|inf|Infinity)(?=\s*[,}\]])")
    parts = [*b'\\\\",: []}xnt/\1\n', *map(ord, "\\u")]
    chosen = random.Random(3)
    words = [bytes([part]) for part in parts] + [b"nan", b"-NaN", b"Infinity", b"u00aF", b"u12", rb"\\"]
    for _ in range(3_000):
        content = b"".join(chosen.choices(words, k=chosen.randrange(40)))
        numbers = no_numbers.sub(b"null", re.sub(rb"[\0-\x1f]", b" ", content))
        expected = escapes.sub(lambda found: found[0] if found[1] else rb"\\", numbers)
        assert document.repair(content, chosen.choice((1, 2, 9, 99))) == expected


def test_a_value_without_end(tmp_path: Path) -> None:
    """What has to be mended and has no comma for megabytes is refused before it is mended."""
    path = tmp_path / "rank_0.json.gz"
    content = b'{"schemaVersion": 1, "traceEvents": [{"name": "' + rb"\x" * (12 << 20) + b'"}]}'
    path.write_bytes(gzip.compress(content, 1))
    assert notes_of(path) == ["PATH: it is damaged, and one of its values has more than 15 MiB"]


def test_too_little_memory(tmp_path: Path) -> None:
    """Where a trace does not fit into the memory that a process may have, that is one line, and the exit code is 2."""
    path = tmp_path / "rank_0.json.gz"
    spaces = gzip.compress(b" " * (64 << 20))
    path.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [') + spaces * 12)
    command = Path(sys.executable).with_name("otel-torchdist")
    limited = f"ulimit -v {700 << 10}; exec {command} analyze --only calls {path}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.NOTHING_FOUND, "")
    assert done.stderr.splitlines() == [
        f"otel-torchdist: warning: {path}: there is not enough memory to read it",
        f"otel-torchdist: {path}: no trace that can be read",
    ]


@pytest.mark.parametrize("size", [64, 1_000, 4_096])
def test_chunks(size: int) -> None:
    """A file is read in chunks, wherever these end: between events, or where objects lie in an event's arguments."""
    trace = trace_of(calls=200)
    for event in trace.events:
        event["args"]["nested"] = [{"a": 1}, {"b": [{}, {}]}, "},{"]
    found, damage = document.open_document(text_of(trace).encode())
    assert damage == ""
    assert [json.loads(bytes(one)) for one in document.items_of(found.traceEvents, size)] == trace.events


def test_archives(tmp_path: Path) -> None:
    """Traces in archives are read without unpacking them, compressed or not."""
    traces = [trace_of(rank) for rank in range(2)]
    names = [trace.write(tmp_path / "traces") for trace in traces]
    with tarfile.open(tmp_path / "job.tar.gz", "w:gz") as archive:
        for name in names:
            archive.add(name, f"run/{name.name}")
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        for nth, trace in enumerate(traces):
            archive.writestr(f"run/rank{nth}.json", text_of(trace))
    expected = shown(histories(tmp_path / "traces"))
    assert len(expected) == 6
    assert shown(histories(tmp_path / "job.tar.gz")) == shown(histories(tmp_path / "job.zip")) == expected


def test_cycles_of_a_schedule(tmp_path: Path) -> None:
    """The files of one process with different steps are one recording; another process's is another one."""
    for step in (2, 12, 22):
        trace = trace_of(first_step=step)
        trace.events = [{**event, "ts": event["ts"] + 1_000 * step} for event in trace.events]
        trace.write(tmp_path, f"rank_0.{step}.json")
    trace_of(1).write(tmp_path, "rank_1.json")
    [zero, one] = histories(tmp_path)
    assert [mark.step for mark in zero.steps] == [2, 12, 22]
    assert (len(zero.operations), len(one.operations)) == (9, 3)
    old = trace_of(calls=1)
    old.pid = 77
    old.events = [{**event, "pid": 77, "ts": event["ts"] - 900} for event in old.events]
    path = old.write(tmp_path, "rank_0.old.json")
    found = read_profiles([tmp_path])
    assert found.notes == (f"rank 0: traces of more than one recording; the newest is used; left out: {path}",)
    assert [len(profile.calls) for profile in found.profiles] == [9, 3]


def test_jobs_of_another_size(tmp_path: Path) -> None:
    """Traces of the job of which there are most ranks are read."""
    for rank in range(2):
        trace_of(rank).write(tmp_path, f"rank_{rank}.json")
    path = trace_of(3, world_size=4).write(tmp_path, "rank_3.json")
    found = read_profiles([tmp_path])
    assert found.notes == (f"1 trace is from jobs of another size and left out, such as {path}",)
    assert [profile.rank for profile in found.profiles] == [0, 1]
