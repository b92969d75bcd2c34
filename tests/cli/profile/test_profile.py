"""`otel-torchdist profile` on a live job of real ranks."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.sources.evidence.texts.py_spy import program
from tests.cli.gloo_jobs import WORKERS, GlooJobs
from tests.support.commands.asking import ask
from tests.support.waiting import until

PY_SPY = program()


@pytest.fixture(scope="module")
def live(gloo_by_kernel: Callable[..., GlooJobs]) -> GlooJobs:
    """A live job of two ranks."""
    job = gloo_by_kernel("compute", ranks=2, worker=WORKERS / "profiled.py")
    until(job.all_are_there, 60)
    return job


def shares(text: str, thread: str) -> dict[str, float]:
    """Return the share of time of each line of a thread in a report, in percent."""
    block = text.partition(f"\n{thread}\n")[2].partition("\n\n")[0]
    return {line: float(share) for share, line in re.findall(r"^ +([0-9.]+)%  (.*)$", block, re.MULTILINE)}


def child_of(job: GlooJobs) -> int:
    """The child of rank 0."""
    return int((job.folder / "child").read_text())


def test_where_a_rank_spends_its_time(live: GlooJobs) -> None:
    """The thread's time is split between the line that computes and the operation in which it waits for the other."""
    answer = ask(live.base, "--rank", "0", "--seconds", "1.5", command="profile")
    assert answer.code == 0, answer.err
    assert re.match(rf"rank 0, pid {live.pids[0]}: \d+ samples in [12]\.\d s\n", answer.out)
    found = shares(answer.out, "MainThread")
    computing = sum(share for line, share in found.items() if "profiled.py" in line and "compute" in line)
    waiting = sum(share for line, share in found.items() if line.endswith("in all_reduce (default_pg)"))
    assert computing > 15, answer.out
    assert waiting > 15, answer.out
    assert sum(found.values()) == pytest.approx(100, abs=3)
    assert any("doze" in line for line in shares(answer.out, "dozing"))
    assert "otel-torchdist" not in answer.out, "our own threads are left out"


def test_children(live: GlooJobs) -> None:
    """What a child of the rank is doing: the system call, the file, and the file system."""
    answer = ask(live.base, "--seconds", "0.3", command="profile")
    assert answer.has(rf"child {child_of(live)}  .*")
    assert answer.has(rf" +100\.0%  in read\(\) of {live.folder}/shard \(\S+ at /.*\)")


def test_folded(live: GlooJobs) -> None:
    """Folded stacks: the thread, the frames from the outermost on, the operation; py-spy samples children."""
    answer = ask(live.base, "--seconds", "1", "--rate", "50", "--format", "folded", command="profile")
    children = [line for line in answer.out.splitlines() if line.startswith(f"child {child_of(live)};")]
    if PY_SPY is not None:
        assert ["have_child (profiled.py" in line.replace("tests/cli/workers/", "") for line in children] == [True]
    lines = [line.rpartition(" ") for line in answer.out.splitlines() if not line.startswith("child ")]
    assert lines
    assert all(count.isdecimal() for _, _, count in lines)
    stacks = [stack.split(";") for stack, _, _ in lines]
    assert {stack[0] for stack in stacks} == {"MainThread", "dozing"}
    inside = [stack for stack in stacks if stack[-1] == "[in all_reduce (default_pg)]"]
    assert all(any(part.startswith("main (profiled.py:") for part in stack) for stack in inside)
    assert inside


def test_speedscope(live: GlooJobs, tmp_path: Path) -> None:
    """The document follows speedscope's schema: weights are seconds, and every referenced frame exists."""
    path = tmp_path / "profile.json"
    answer = ask(live.base, "--seconds", "1", "--format", "speedscope", "--output", path, command="profile")
    assert (answer.code, answer.out) == (0, "")
    document = json.loads(path.read_text())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    for one in document["profiles"]:
        assert (one["type"], one["unit"], one["startValue"]) == ("sampled", "seconds", 0)
        assert len(one["samples"]) == len(one["weights"])
        assert one["endValue"] == pytest.approx(sum(one["weights"]), abs=1e-3)
        assert all(0 <= frame < len(frames) for sample in one["samples"] for frame in sample)
    [main] = [one for one in document["profiles"] if one["name"] == "MainThread"]
    assert 0.5 < main["endValue"] < 1.5
    assert {"compute", "main"} <= {frame["name"] for frame in frames}


def test_two_at_the_same_time(live: GlooJobs) -> None:
    """Two ranks can be profiled at once, repeatedly."""
    for rank in (1, 0, 1):
        answer = ask(live.base, "--rank", str(rank), "--seconds", "0.2", command="profile")
        assert answer.code == 0, answer.err
        assert answer.out.startswith(f"rank {rank}, pid {live.pids[rank]}: ")


def test_rank_that_is_not_here(live: GlooJobs) -> None:
    """A rank on another node: one sentence, and the exit code for nothing found."""
    answer = ask(live.base, "--rank", "7", command="profile")
    assert answer.code == 2
    assert re.fullmatch(
        r"otel-torchdist: run \w{8}: rank 7 does not run on this node \(ranks 0-1 here\)\n", answer.err
    ), answer.err


@pytest.mark.thorough
def test_stopped_rank(live: GlooJobs) -> None:
    """A rank that does not answer ends the command with a sentence, and answers the next request when it can."""
    os.kill(live.pids[1], signal.SIGSTOP)
    try:
        answer = ask(live.base, "--rank", "1", "--seconds", "0.1", command="profile")
    finally:
        os.kill(live.pids[1], signal.SIGCONT)
    assert answer.code == 2
    reason = "it does not answer: native code may hold the GIL, or its process is stopped"
    assert answer.err == f"otel-torchdist: rank 1 (pid {live.pids[1]}): {reason}\n"
    assert ask(live.base, "--rank", "1", "--seconds", "0.3", command="profile").code == 0
