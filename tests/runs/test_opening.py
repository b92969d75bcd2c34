"""Runs are found and opened by id, directory, archive and files; what cannot be read is a `RunError`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_torchdist.runs import RecordedRun, RunError, RunKind, find_runs, open_run
from otel_torchdist.runs.recorded_run import RecordedRun as Opened
from tests.runs.conftest import TWO_RANKS, WORKERS, RecordedJobs
from tests.support.launch.quiet import QUIET
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

DUMPS = REPOSITORY / "tests" / "sources" / "flight" / "data" / "gpu_error_1st"
TRACE = REPOSITORY / "tests" / "sources" / "profiles" / "data"


@pytest.mark.process
def test_ways_to_open_a_run(jobs: RecordedJobs) -> None:
    """Nothing, an id, a job directory, an archive with an id, and an entry of `find_runs` each open the right run."""
    older, newer = jobs.runs
    assert older.id is not None and newer.id is not None
    assert open_run().run_id == newer.id
    assert open_run(older.id[:8]).run_id == older.id
    assert open_run(older.directory).run_id == open_run(Path(older.directory)).run_id == older.id
    assert open_run(jobs.archive, older.id[:8]).run_id == older.id
    assert (jobs.before.run_id, jobs.after.run_id) == (older.id, newer.id)
    assert [run.id for run in find_runs(jobs.archive)] == [newer.id, older.id]
    archived = open_run(find_runs(jobs.archive)[1])
    assert (archived.run_id, archived.kind) == (older.id, RunKind.ARCHIVE)
    assert [run.id for run in find_runs(older.directory)] == [older.id]


@pytest.mark.process
def test_an_archive_of_several_runs(jobs: RecordedJobs) -> None:
    """Without an id, the error lists the runs of the archive."""
    with pytest.raises(RunError, match=r": 2 runs: add the first digits of a run's id, or name its folder: "):
        open_run(jobs.archive)


@pytest.mark.process
def test_a_copied_directory(jobs: RecordedJobs, tmp_path: Path) -> None:
    """A copy of a job directory is read like the directory."""
    copy = tmp_path / "copy"
    shutil.copytree(jobs.runs[0].directory, copy)
    copy.chmod(0o700)
    assert open_run(copy).calls.to_arrow().equals(jobs.before.calls.to_arrow())


def test_dumps_and_traces() -> None:
    """Real dumps have a verdict and calls, a real trace has calls and no verdict."""
    dumps, trace = open_run(DUMPS), open_run(TRACE)
    assert (dumps.kind, trace.kind) == (RunKind.DUMPS, RunKind.TRACES)
    verdict = dumps.diagnose().verdict
    assert verdict is not None and verdict.ranks == (12, 14)
    assert len(dumps.calls) == sum(row["operations"] for row in dumps.ranks.to_arrow().to_pylist()) == 289
    assert len(trace.calls) == 21
    assert (len(dumps.steps), len(dumps.activities)) == (0, 0)
    assert trace.graph() is not None
    with pytest.raises(RunError, match="traces hold no state of a hang"):
        trace.diagnose()
    with pytest.raises(RunError, match="no durations of steps are recorded"):
        dumps.plot_steps()


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["no-such-run"], "no-such-run: neither a run's id nor a path"),
        (["no/such/file"], "no/such/file: no such file or directory"),
        ([DUMPS, TRACE], "name only one kind"),
    ],
)
def test_what_cannot_be_opened(paths: list[str | Path], message: str) -> None:
    """A path that leads nowhere and a mixture of kinds are one exception, which says why."""
    with pytest.raises(RunError, match=message):
        open_run(*paths)


def test_no_calls(tmp_path: Path) -> None:
    """A folder without a readable file opens, and each question about it says that nothing can be read."""
    (tmp_path / "notes.txt").write_text("nothing\n")
    run = open_run(tmp_path)
    with pytest.raises(RunError, match="no dump of the flight recorder and no trace"):
        run.critical_path()
    with pytest.raises(RunError, match="nothing that can be read"):
        run.diagnose()
    assert len(run.calls) == 0 and "operation" in run.calls.columns


def test_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any tape, opening says where it has looked; the list of runs is empty."""
    monkeypatch.setenv("OTEL_PYTHON_TORCHDIST_TAPE_DIR", str(tmp_path))
    with pytest.raises(RunError, match="no tape that can be read"):
        open_run()
    assert find_runs() == ()
    with pytest.raises(RunError, match="neither an archive nor a job directory"):
        find_runs(tmp_path / "missing")


@pytest.mark.process
def test_a_live_run(warm_python: WarmPython, jobs: RecordedJobs, tmp_path: Path) -> None:
    """A run that hangs is judged while it runs: the verdict names the rank and its line; its calls are open."""
    environ = {
        **QUIET,
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(jobs.tapes),
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000",  # the reader asks the rank for its stack by then
    }
    torchrun = Torchrun(warm_python, tmp_path / "hung", [*TWO_RANKS, WORKERS / "hanging.py"], environ)
    known = {run.id for run in jobs.runs}

    def hung_run() -> RecordedRun | None:
        new = [run for run in find_runs() if run.id not in known and run.world_size == 2 and len(run.ranks) == 2]
        return open_run(new[0]) if new else None

    def has_line() -> bool:
        run = hung_run()
        verdict = run.diagnose(threshold_s=0.5).verdict if run is not None else None
        return verdict is not None and "load_batch at hanging.py:" in verdict.sentence

    try:
        until(has_line)
        run = hung_run()
        assert isinstance(run, Opened)
        result = run.diagnose(threshold_s=0.5)
        assert result.problem and result.moment.is_now and result.verdict is not None
        assert (result.verdict.kind, result.verdict.ranks, result.verdict.waiting) == ("absent", (1,), (0,))
        rows = run.calls.to_arrow().to_pylist()
        assert [row["rank"] for row in rows if row["duration_ns"] is None] == [0]
        assert run.findings == (*result.findings, *result.past_findings)
    finally:
        torchrun.close()


@pytest.mark.process
def test_needs_no_libraries_of_commands() -> None:
    """Opening, judging and analyzing needs none of typer, rich, torch, numpy, pyarrow or altair."""
    code = f"""
import sys
for name in ("typer", "rich", "torch", "numpy", "pyarrow", "altair"):
    sys.modules[name] = None
from otel_torchdist import runs
run = runs.open_run({str(DUMPS)!r})
print(run.diagnose().verdict.ranks, len(run.statistics(by="operation").rows) > 0, run.graph() is not None)
for question in (lambda: run.calls, lambda: run.plot_timeline(), lambda: runs.as_table([])):
    try:
        question()
    except ImportError as error:
        print(error)
assert set(runs.__all__) <= set(dir(runs))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines() == [
        "(12, 14) True True",
        "tables need pyarrow: pip install 'otel-torchdist[analysis]'",
        "pictures need altair: pip install 'otel-torchdist[notebook]'",
        "tables need pyarrow: pip install 'otel-torchdist[analysis]'",
    ], done.stderr
