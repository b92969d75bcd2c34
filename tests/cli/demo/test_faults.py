"""`otel-torchdist demo --fault`: each fault happens, gets its verdict, and has no leftovers.

`test_demo` and `test_stopped` start the demo and its torchrun as people do.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from otel_torchdist.agent.log_relay import LOG_NAME
from otel_torchdist.cli.demo.findings import DemoFindings, closing_lines
from otel_torchdist.cli.demo.options import DemoOptions, Fault, expectation
from otel_torchdist.cli.demo.run import FollowedAgent, is_hopeless
from otel_torchdist.cli.watch.views import PlainView
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.show.live.ranks import RankRow, RankState, starting
from tests.support.commands.running import environment, processes_of
from tests.support.launch.torchrun import WARM_DEMO
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.worlds.detectors import Watching, stalled

THRESHOLD_S = 1.5
BLOCK_S = 6.0
FINISHED = "Training has finished: accuracy on "
NOT_FINISHED = "Training has ended without finishing."
HAS_HUNG = "The training has hung for 6 s: torchrun is asked to end."
QUICK = ("--ranks", "3", "--steps", "250", "--seed", "1", "--threshold", str(THRESHOLD_S))


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    """Forks demos, which fork their torchrun: importing torch and scikit-learn takes seconds of a core."""
    python = WarmPython("sklearn.datasets", "torch.distributed.run", "otel_torchdist.cli.demo.command")
    yield python
    python.close()


@pytest.fixture
def demo(python: WarmPython, base: Path, tmp_path: Path) -> Callable[..., Done]:
    """Runs a demo with arguments, to its end."""

    def run(*arguments: str | Path) -> Done:
        [done] = python.run(WARM_DEMO, [environment(base)], tmp_path, ["demo", *map(str, arguments)], timeout_s=300)
        return done

    return run


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "expected", "said", "end"),
    [
        pytest.param(
            "kill",
            "dead, rank 2",
            r"rank 2 was killed by SIGKILL("
            r" 0\.\d+ s before the others ended, and all_reduce "
            r"|, and all_reduce \(.*\) has been blocked for [01]\.\d+ s)",
            NOT_FINISHED,
            id="kill",
        ),
        pytest.param("freeze", "frozen, rank 2", r"rank 2 is frozen \(stopped by a signal\)", FINISHED, id="freeze"),
        pytest.param(
            "mismatch",
            "mismatched, rank 2",
            "rank 2 has shape 9 elements where ranks 0-1 have 10",
            NOT_FINISHED,
            id="mismatch",
        ),
        pytest.param(
            "circular", "circular, ranks 0-2", "ranks 0-2 have waited for each other for ", HAS_HUNG, id="circular"
        ),
        pytest.param(
            "checkpoint",
            "absent, rank 2",
            r"rank 2 is in checkpoint save /.*/digits-\w+, write_data, for [\d.]+ s \([\d.]+ kB\), and has not ",
            FINISHED,
            id="checkpoint",
        ),
    ],
)
def test_fault_gets_its_verdict(
    demo: Callable[..., Done], base: Path, tmp_path: Path, fault: str, expected: str, said: str, end: str
) -> None:
    """The verdict is right and in time, as exit code 0 states; the file has it too; the job ends, or goes on."""
    # A rank is killed in the middle; how it ended is seen only if there is an agent by then.
    more = ("--steps", "600") if fault == "kill" else ()
    done, spans = staged(demo, base, tmp_path, fault, *more, "--block-seconds", str(BLOCK_S))
    assert re.search(f"STALL: {said}", done.out), done.out
    reported = re.search(
        rf"^Staged: .*\.\nExpected: {expected}\.\nReported: the same, ([\d.]+) s after", done.out, re.M
    )
    assert reported is not None, done.out
    assert float(reported[1]) <= THRESHOLD_S + 2
    assert "STALL: " not in done.out.partition("torchrun is asked to end")[2]
    operation = "all_gather" if fault == "checkpoint" else "all_reduce"
    assert f"stall: {operation} ({expected.split(',')[0]})" in spans
    assert end in done.out
    assert (HAS_HUNG in done.out) == (end == HAS_HUNG)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "expected", "said"),
    [
        (
            "nan",
            "non_finite, rank 2",
            r"rank 2 is the first with values that are not numbers \(NaN\) in the inputs",
        ),
        ("bitflip", "diverged, rank 2", r"rank 2 has another result of all_reduce \(.*\) in step \d+ than ranks 0-1, "),
    ],
)
def test_fault_of_values(
    demo: Callable[..., Done], base: Path, tmp_path: Path, fault: str, expected: str, said: str
) -> None:
    """What stalls nothing is found too: the training goes on, and the finding is in the output, once, and the file."""
    done, spans = staged(demo, base, tmp_path, fault, "--steps", "60")
    assert len(re.findall(f"finding: {said}", done.out)) == 1, done.out
    assert re.search(rf"^Staged: .*\.\nExpected: {expected}\.\nReported: the same\.$", done.out, re.M), done.out
    assert f"({expected.partition(',')[0]})" in spans
    assert FINISHED in done.out


def staged(demo: Callable[..., Done], base: Path, folder: Path, fault: str, *arguments: str) -> tuple[Done, str]:
    """Run a demo that gets its verdict and leaves nothing; returns its output and its file of spans."""
    spans = folder / "spans.jsonl"
    done = demo("--fault", fault, *QUICK, *arguments, "--output", spans)
    assert done.code == 0, done
    assert (processes_of(base), list(base.iterdir())) == ([], [])
    return done, spans.read_text()


def options(fault: Fault, ranks: int = 2) -> DemoOptions:
    """Options of a short demo."""
    return DemoOptions(ranks, 30, 0, fault, THRESHOLD_S, BLOCK_S, Path("spans.jsonl"), None, None, plain=True)


@pytest.mark.parametrize(
    ("fault", "kind", "of_two", "of_four"),
    [
        (Fault.LATE, VerdictKind.ABSENT, (1,), (2,)),
        (Fault.CHECKPOINT, VerdictKind.ABSENT, (1,), (2,)),
        (Fault.MISMATCH, VerdictKind.MISMATCHED, (0, 1), (2,)),
        (Fault.CIRCULAR, VerdictKind.CIRCULAR, (0, 1), (0, 1, 2, 3)),
    ],
)
def test_ranks_that_must_be_named(
    fault: Fault, kind: VerdictKind, of_two: tuple[int, ...], of_four: tuple[int, ...]
) -> None:
    """The expected ranks: the faulty one; all of a circle; both of two that disagree, as there is no majority."""
    for faulty_rank, ranks, named in ((1, 2, of_two), (2, 4, of_four)):
        expected = expectation(fault, faulty_rank, ranks)
        assert (expected.verdict, expected.ranks) == (kind.value, named)


def test_closing_lines_without_a_verdict() -> None:
    """Without a verdict, the final report gives the expected one, and the demo has failed."""
    findings = DemoFindings(options(Fault.KILL), PlainView(Console()), lambda operation: [])
    words = list(closing_lines(findings, "", "", 0))
    assert words[:4] == [
        "Training has ended without finishing.",
        "Staged: rank 1 is killed, as if memory had run out.",
        "Expected: dead, rank 1.",
        "Reported: nothing.",
    ]
    assert not findings.is_in_time


def test_verdict_that_is_given_again_counts_once() -> None:
    """When ranks end while they wait, a verdict may be repeated: the first time counts, and it is printed once."""
    watching = Watching(stalled(late=2)[0])
    watching.until(18.0)
    [(_, given)] = watching.verdicts
    output = io.StringIO()
    findings = DemoFindings(options(Fault.LATE, ranks=4), PlainView(Console(file=output)), lambda operation: [])
    findings.process([given])
    first = findings.expected_after_s
    assert first is not None
    findings.process([given])
    assert findings.expected_after_s == first
    said = output.getvalue()
    assert (said.count("STALL: rank 2 has not"), said.count("still: rank 2 has not")) == (1, 1)


FOUND = "rank 1 is the first with values that are not numbers (NaN) in the inputs of all_reduce"
WHERE = "(run 2e4f0fd1, trace 16730d8399743d2efd79f30668b4cec4)"


@pytest.mark.parametrize(
    ("finders", "shown"),
    [
        (("agent",), f"finding: {FOUND} {WHERE}\n"),
        (("demo",), f"finding: {FOUND}\n"),
        (("agent", "demo"), f"finding: {FOUND} {WHERE}\n"),
        (("demo", "agent"), f"finding: {FOUND}\n"),
    ],
    ids=" and ".join,
)
def test_finding_is_shown_once(tmp_path: Path, finders: tuple[str, ...], shown: str) -> None:
    """Whether the agent's log has it, the demo has found it, or both: as soon as the first of them has it."""
    output = io.StringIO()
    findings = DemoFindings(options(Fault.NAN), PlainView(Console(file=output)), lambda operation: [])
    agent = FollowedAgent(tmp_path, False, findings.report_finding)
    for finder in finders:
        if finder == "demo":
            findings.report_finding(FOUND)
            continue
        (tmp_path / LOG_NAME).write_text(f"2026-11-25 20:00:00,123 WARNING finding: {FOUND} {WHERE}\n")
        agent.follow()
    assert output.getvalue()[10:] == shown


def rows(*, step: int = 15, age_s: float) -> list[RankRow]:
    """Two stalled ranks."""
    stalled = RankState.STALLED.value
    return [
        replace(starting(rank), state=stalled, step=step, operation="all_reduce #1", age_s=age_s) for rank in (0, 1)
    ]


def test_job_that_hangs_is_ended() -> None:
    """A hang is ended even without a verdict, by the age of its operation; a temporary fault gets all its time."""
    for fault, is_ended in ((Fault.CIRCULAR, True), (Fault.LATE, False)):
        asked = options(fault)
        assert not is_hopeless(asked, rows(age_s=BLOCK_S - 0.1))
        assert not is_hopeless(asked, rows(step=0, age_s=BLOCK_S))  # ranks come late
        assert is_hopeless(asked, rows(age_s=BLOCK_S)) == is_ended
