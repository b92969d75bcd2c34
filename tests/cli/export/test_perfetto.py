"""`otel-torchdist export --perfetto` over a job that hangs and is then killed, over dumps, and what it refuses."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from otel_torchdist.analysis.result import AnalysisSection
from otel_torchdist.cli.export.perfetto import Limits, export_perfetto
from otel_torchdist.cli.targets import target_of
from tests.analysis.timeline.checker import Timeline, ranks_in
from tests.cli.gloo_jobs import GlooJobs, await_signs_of_life
from tests.sources.flight.made_dumps import START_NS
from tests.support.commands.asking import Answer, ask
from tests.support.documented import commands_of, page
from tests.support.ranks.rank import SHOWS_REDUCE_OP
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "drawn.py"
DUMPS = REPOSITORY / "tests" / "sources" / "flight" / "data" / "gpu_error_1st"
PAGE = page("timeline.md")
STEPS = 5


@pytest.fixture(scope="module")
def job(gloo_by_kernel: Callable[..., GlooJobs]) -> GlooJobs:
    """Four ranks, three of which wait for rank 2 in the last all_reduce."""
    job = gloo_by_kernel("hangs", worker=WORKER)
    until(job.all_are_there, 60)
    until(lambda: "rank 2 has not" in ask(job.base).out)
    await_signs_of_life(job.base)
    return job


def _draw(base: Path, path: Path, *arguments: str) -> tuple[Answer, Timeline]:
    answer = ask(base, "--perfetto", path, *arguments, command="export", threshold_s=0.5)
    assert answer.code == 0, answer.err
    return answer, Timeline.of(path)


def _check(answer: Answer, timeline: Timeline) -> None:
    assert answer.has("clocks: all ranks are on one monotonic clock")
    assert answer.has("incident: rank 2 .*")
    assert ranks_in(timeline.slices) == [0, 1, 2, 3]
    calls = [one for one in timeline.named("all_reduce") if one.arguments["shapes"] == "[1024]"]
    assert len(calls) == 4 * STEPS * 3
    assert {one.path[-1] for one in calls} == {"lane 1", "lane 2", "lane 3"}
    assert {(one.arguments["bytes"], one.arguments["dtype"], one.arguments.get("reduce op")) for one in calls} == {
        (4096, "float32", "sum" if SHOWS_REDUCE_OP else None)
    }
    assert all(one.arguments["site"][1].endswith("drawn.py") for one in calls)
    waits = [one.arguments["wait ns"] for one in calls if "wait ns" in one.arguments]  # others were polled before
    assert waits and min(waits) >= 0
    waiting = timeline.named("all_reduce (open)")
    assert ranks_in(waiting) == [0, 1, 3]
    stalls = timeline.named("stall")
    assert ranks_in(stalls) == [0, 1, 2, 3]
    assert "rank 2" in stalls[0].arguments["verdict"]
    assert [(start.rank, end.rank) for start, end in timeline.flows() if start.name == "stall"] == [
        (2, 0), (2, 1), (2, 3),
    ]  # fmt: skip
    late = [start.rank for start, _ in timeline.flows() if start.arguments.get("shapes") == "[1024]"]
    assert late.count(2) > len(late) / 2
    assert all(start.name in ("send", "recv") for start, end in timeline.flows() if end.name in ("send", "recv"))
    assert len(timeline.named("optimizer step")) == 4 * STEPS
    assert {one.path[1] for one in timeline.named("step 2")} == {"steps"}


@pytest.mark.process
def test_a_job_that_hangs(job: GlooJobs, tmp_path: Path) -> None:
    """Asynchronous calls are in lanes, the late rank's flows lead to the others, and the stall is marked."""
    _check(*_draw(job.base, tmp_path / "hang.pftrace"))


@pytest.mark.process
def test_the_same_job_killed(job: GlooJobs, tmp_path: Path) -> None:
    """After SIGKILL of all ranks the same is drawn, compressed too; steps and ranks are chosen."""
    job.kill()
    _check(*_draw(job.base, tmp_path / "killed.pftrace"))
    _check(*_draw(job.base, tmp_path / "killed.pftrace.gz"))
    _, some = _draw(job.base, tmp_path / "some.pftrace", "--steps", "2-3", "--ranks", "0,3")
    assert {one.arguments["step"] for one in some.slices if one.name != "stall"} == {2, 3}
    assert ranks_in(some.slices) == [0, 3]
    assert (tmp_path / "killed.pftrace.gz").stat().st_size < (tmp_path / "killed.pftrace").stat().st_size / 3
    _, near = _draw(job.base, tmp_path / "near.pftrace", "--around", "1ms")
    [first, *_] = near.named("all_reduce (open)")
    assert abs(first.begin - near.named("stall")[0].begin) < 1_000_000
    assert not [one for one in near.slices if one.arguments.get("step") == 1]


@pytest.mark.process
def test_commands_of_the_page(job: GlooJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of docs/timeline.md writes its file; the job has fewer steps and ranks than the one of the page."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DUMPS, "dumps")
    theirs, ours = "--steps 100-120 --ranks 0-7", "--steps 2-3 --ranks 0-3"
    commands = [command.replace(theirs, ours).split() for command in commands_of(PAGE)]
    assert [words[:3] for words in commands] == [["otel-torchdist", "export", "--perfetto"]] * 4
    assert any("2-3" in words for words in commands)
    for words in commands:
        answer = ask(job.base, *words[2:], command=words[1], threshold_s=0.5)
        assert (answer.code, answer.err) == (0, ""), words
        assert Timeline.of(Path(words[3])).slices


def _of_dumps(base: Path, path: Path, *arguments: str | Path) -> Answer:
    return ask(base, "--perfetto", path, *arguments, command="export")


def test_dumps(base: Path, tmp_path: Path) -> None:
    """Dumps are drawn with the verdict on them."""
    answer = _of_dumps(base, tmp_path / "dumps.pftrace", DUMPS)
    assert (answer.code, answer.err) == (0, "")
    assert answer.has("incident: ranks 12,14 have not come out of all_reduce.*")
    timeline = Timeline.of(tmp_path / "dumps.pftrace")
    assert ranks_in(timeline.slices) == list(range(16))
    assert all(one.begin > START_NS // 2 for one in timeline.slices)


@pytest.mark.parametrize("command", [("analyze", "--html"), ("export", "--perfetto")], ids=["report", "perfetto"])
def test_files_of_others(base: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    """A file of another program stays, an earlier export is replaced, and no unfinished file is left."""

    def write(path: Path, *options: str) -> Answer:
        name, *before = command
        return ask(base, *before, path, DUMPS, *options, command=name)

    path = tmp_path / "mine.txt"
    path.write_text("my notes")
    answer = write(path)
    assert answer.code == 73 and "otel-torchdist has not written it" in answer.err
    assert path.read_text() == "my notes"
    assert write(path, "--force").code == 0
    before = path.stat().st_ino
    assert write(path).code == 0
    assert path.stat().st_ino != before
    assert write(tmp_path / "a.gz").code == 0
    assert write(tmp_path / "a.gz", "--ranks", "0").code == 0
    answer = write(tmp_path)
    assert answer.code == 73 and answer.err.startswith(f"otel-torchdist: {tmp_path}: it is a directory; name a file")
    assert write(tmp_path / "none" / "a").err == f"otel-torchdist: {tmp_path / 'none'}: no such directory\n"
    assert sorted(os.listdir(tmp_path)) == ["a.gz", "mine.txt"]


@pytest.mark.parametrize(("command", "option"), [("analyze", "--html"), ("export", "--perfetto")])
def test_a_file_that_cannot_be_completed(base: Path, tmp_path: Path, command: str, option: str) -> None:
    """A report and a timeline for which there is no room have the same exit code and sentence."""
    path = tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        answer = ask(base, option, path, DUMPS, command=command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert answer.code == 74
    assert answer.err.endswith(f"otel-torchdist: {path}: File too large\n")
    assert os.listdir(tmp_path) == []


def test_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Above the limit nothing is written, and the sentence names number, limit and options."""
    dumps, path = target_of([str(DUMPS)], None), tmp_path / "a.pftrace"
    with pytest.raises(typer.Exit) as ended:
        export_perfetto(dumps, path, Limits(None, None, None, max_slices=100), force=False)
    assert ended.value.exit_code == 74
    sentence = capsys.readouterr().err
    assert "289 slices, more than the 100" in sentence
    assert all(option in sentence for option in ("--ranks", "--steps", "--around"))
    assert not os.listdir(tmp_path)
    export_perfetto(dumps, path, Limits(frozenset({0, 1}), None, None, max_slices=100), force=False)
    assert path.exists()


@pytest.mark.parametrize("arguments", [("--ranks", "99"), ("--steps", "999999")])
def test_nothing_that_was_asked_for(base: Path, tmp_path: Path, arguments: tuple[str, str]) -> None:
    """If no call matches, one sentence says so, and no file is written."""
    answer = _of_dumps(base, tmp_path / "a.pftrace", DUMPS, *arguments)
    assert answer.code == 2 and "no matching call" in answer.err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "export --perfetto out",
        "analyze",
        "analyze --html out",
        *(f"analyze --only {one.value}" for one in AnalysisSection),
    ],
)
def test_a_folder_of_something_else(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """All commands that read calls say of other files that none of them can be read, and write nothing."""
    (tmp_path / "notes.txt").write_text("my notes")
    monkeypatch.chdir(tmp_path)
    command, *options = line.split()
    answer = ask(base, *options, tmp_path, command=command)
    assert answer.code == 2
    assert answer.err.endswith(
        f"otel-torchdist: {tmp_path}: no dump of the flight recorder and no trace of PyTorch's profiler that can be "
        "read\n"
    )
    assert os.listdir(tmp_path) == ["notes.txt"]
