"""`otel-torchdist watch` over a real job on gloo with one rank held up, on a terminal and without one."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.node.job.directory import job_directories, tapes_in
from otel_torchdist.tape.reading.reader import TapeReader
from tests.cli.gloo_jobs import CALLING_LINE, LOADING_LINE, THRESHOLD_S, GlooJobs
from tests.support.commands.asking import ask
from tests.support.commands.running import Running
from tests.support.commands.terminal import Terminal

OPTIONS = ("--threshold", str(THRESHOLD_S), "--wait", "120")
VERDICT = (
    r"rank 2 has not entered all_reduce \(sequence 6, default_pg\) for [\d.]+ s; "
    rf"it is in load_batch at training\.py:{LOADING_LINE}; "
    rf"3 of 4 ranks wait in <module> at training\.py:{CALLING_LINE}\. "
    r"Gloo raises an error in rank [013] in [\d.]+ (?:s|min \d+ s) \(timeout [\d.]+ (?:min|s)\)\. "
    rf"next: find out why rank 2 did not go on from load_batch at training\.py:{LOADING_LINE}; while the job runs, "
    r"`otel-torchdist profile --rank 2` or py-spy shows what its threads do"
)
TIME = r"^\d\d:\d\d:\d\d  "


@pytest.fixture(scope="module")
def stalled(gloo_by_kernel: Callable[..., GlooJobs]) -> GlooJobs:
    """A job whose rank 2 stays in `load_batch` until the gate is opened, with readers in its ranks."""
    return gloo_by_kernel("is late", reader="thread")


@pytest.fixture
def watch(start_beside: Callable[..., Running]) -> Callable[..., Running]:
    """Starts `watch` beside a job without a terminal."""
    return lambda job, *arguments: start_beside(job, "watch", *OPTIONS, *arguments)


@pytest.fixture
def terminal(stalled: GlooJobs) -> Iterator[Callable[..., Terminal]]:
    """Starts `watch` in a terminal."""
    started: list[Terminal] = []

    def start(is_controlling: bool = True, **environ: str) -> Terminal:
        started.append(Terminal(stalled.base, "watch", *OPTIONS, environ=environ, is_controlling=is_controlling))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_lines(watch: Callable[..., Running], stalled: GlooJobs) -> None:
    """Without a terminal: a line for each change and for the verdict, with the line that blocks, then a summary."""
    running = watch(stalled)
    running.wait_for(TIME + r"found ranks? [0-3]")
    running.wait_for(TIME + r"run [0-9a-f]{8}$")
    running.wait_for(TIME + f"STALL: {VERDICT}$")
    running.wait_for(TIME + rf" *\S*training\.py:{LOADING_LINE}: os\.read\(pipe, 1\)$")
    running.wait_for(
        TIME + r"step 5; [\d.]+ steps/s; [\d.]+ collectives/s; ranks 0-1,3 stalled, all_reduce #6 \(default_pg\) "
        r"for [\d.]+ s; rank 2 absent, not in all_reduce #6 \(default_pg\) for [\d.]+ s$"
    )
    running.wait_for(TIME + f"still: {VERDICT}$")
    assert "\x1b" not in running.out
    running.signal_group(signal.SIGINT)
    assert (running.end(), running.err) == (0, "")


def test_terminal(terminal: Callable[..., Terminal]) -> None:
    """On a terminal: a colored table with a row for each rank, under the verdict; Ctrl-C ends it with 0."""
    shown = terminal()
    shown.wait_for(r"run [0-9a-f]{8}  4 of 4 ranks  \S+/job-[0-9a-f]{16}\n")
    shown.wait_for(r"╭─ stall ─+╮\n│ rank 2 has not entered all_reduce \(sequence 6, default_pg\)")
    shown.wait_for(r"rank +state +step .*operation +group +age +where")
    shown.wait_for(rf"1 +stalled +5 .*all_reduce #6 +default_pg +[\d.]+ s +training\.py:{CALLING_LINE} <module> *\n")
    shown.wait_for(
        rf"2 +absent +5 .*not in all_reduce #6 +default_pg +[\d.]+ s +training\.py:{LOADING_LINE} load_batch *\n"
    )
    assert re.search(r"\x1b\[[\d;]*41m absent", shown.shown)
    shown.type(b"\x03")
    assert shown.process.wait(60) == 0


def test_no_color(terminal: Callable[..., Terminal]) -> None:
    """With NO_COLOR the table has no colors."""
    shown = terminal(NO_COLOR="1")
    shown.wait_for(r"2 +absent +5")
    assert not re.search(r"\x1b\[(\d+;)*[349]\d(;\d+)*m", shown.shown)


@pytest.mark.parametrize("is_controlling", [True, False], ids=["signal", "no signal"])
def test_terminal_is_closed(terminal: Callable[..., Terminal], is_controlling: bool) -> None:
    """When the terminal is closed, `watch` ends with 0, by SIGHUP or because it can no longer print."""
    shown = terminal(is_controlling=is_controlling)
    shown.wait_for(r"2 +absent +5")
    shown.hang_up()
    assert shown.process.wait(60) == 0


@pytest.mark.thorough
def test_two_watches_leave_the_job_alone(
    watch: Callable[..., Running], stalled: GlooJobs, gloo_by_kernel: Callable[..., GlooJobs]
) -> None:
    """Two watchers at once both see the end. Without an agent, no rank gets a request and nothing is locked."""
    first, second = watch(stalled), watch(stalled, "--plain")
    for one in (first, second):
        one.wait_for(f"STALL: {VERDICT}")
    stalled.open_gate()
    for one in (first, second):
        assert one.end() == 0, one.story()
        assert re.search(r"stall over: all_reduce \(sequence 6, default_pg\) completed after [\d.]+ s$", one.out, re.M)
        assert one.out.endswith("the job has ended: ranks 0-3 have finished\n")
    stalled.join()
    unread = gloo_by_kernel("is late", ranks=2)
    third = watch(unread, "--keep", "0")
    third.wait_for(r"STALL: rank 1 has not entered all_reduce \(sequence 6, default_pg\)")
    [directory] = job_directories(unread.base)
    tapes = [TapeReader(path) for path in tapes_in(directory)]
    assert [tape.status().request for tape in tapes] == [0, 0]
    for tape in tapes:
        tape.close()
    assert not {".lock", ".stacks"} & {path.suffix for path in directory.iterdir()}
    unread.kill()
    assert third.end() == 0
    gone = r"ranks 0-1 are dead: their processes are gone without a word"
    assert re.search(rf"the job has ended: {gone}\n.*: otel-torchdist diagnose [0-9a-f]{{8}}\n$", third.out), (
        third.story()
    )


@pytest.mark.thorough
def test_gil_is_held(watch: Callable[..., Running], stalled: GlooJobs, gloo_by_kernel: Callable[..., GlooJobs]) -> None:
    """If a rank holds the GIL and no agent queries it, `watch` shows that no Python runs, and its last operation."""
    stalled.open_gate()
    stalled.join()
    holding = gloo_by_kernel("holds the GIL", ranks=2)
    running = watch(holding)
    running.wait_for(
        r"still: rank 1 has not entered all_reduce \(sequence 6, default_pg\) for [\d.]+ s; "
        rf"it was last in all_reduce, called in <module> at training\.py:{CALLING_LINE}, "
        r"and its Python threads have not run for [\d.]+ s(; 1 of 2 ranks waits in .*)?\. .*$"
    )
    holding.open_gate()
    running.wait_for(r"stall over: all_reduce \(sequence 6, default_pg\) completed after")
    assert running.end() == 0, running.story()


@pytest.mark.parametrize(
    ("options", "what"), [([], "job with a live rank"), (["--run-dir"], "tape"), (["feedbeef"], "run feedbeef")]
)
def test_nothing_to_watch(base: Path, options: list[str], what: str) -> None:
    """Without a job, `watch` prints that it waits, and after the given time that there is none."""
    where = [base] if options == ["--run-dir"] else []
    answer = ask(base, "--wait", "0.3", *options, *where, command="watch")
    assert answer.code == 2
    assert answer.out == f"no {what} below {base} yet; waiting for at most 0.3 s\n"
    assert answer.err == f"otel-torchdist: no {what} below {base} within 0.3 s\n"
