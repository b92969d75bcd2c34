"""The answers of the tools: the structs that `--json` prints, with what an assistant needs beside them."""

from __future__ import annotations

from msgspec import Struct

from otel_torchdist.analysis.result import AnalysisResult
from otel_torchdist.runs.diagnosis.result import DiagnosisResult
from otel_torchdist.runs.listing import ListedRun
from otel_torchdist.show.report.reading import ReportConclusions


class ListRunsAnswer(Struct, frozen=True):
    """The runs that can be read.

    Attributes:
        runs: The runs, the newest first.
        bundles: Paths of bundles, which hold the evidence on one moment of a run. `diagnose` and `analyze` read them.
        reports: Paths of reports in HTML. `read_report` reads them.
        directories: The directories that this server may read. Other paths are refused.
        warnings: Files that could not be read, with reasons.
        left_out: Parts that were left out to keep the answer short, and how to get them.
    """

    runs: tuple[ListedRun, ...]
    bundles: tuple[str, ...]
    reports: tuple[str, ...]
    directories: tuple[str, ...]
    warnings: tuple[str, ...]
    left_out: tuple[str, ...] = ()


class DiagnoseAnswer(Struct, frozen=True):
    """A diagnosis.

    Attributes:
        summary: The result in sentences, with the next step to take after `next:`.
        runbook: Addresses of the pages on this kind of verdict, as resources of this server: what it means, what to do
            now, usual causes, when it can be wrong.
        diagnosis: The diagnosis with all details. Times are UTC; ages are seconds before `moment.time`.
        notes: What was read, if a choice was made.
        left_out: Parts that were left out to keep the answer short, and how to get them.
    """

    summary: str
    runbook: tuple[str, ...]
    diagnosis: DiagnosisResult
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class AnalyzeAnswer(Struct, frozen=True):
    """An analysis.

    Attributes:
        headline: The run in a sentence.
        analysis: The requested section; the other sections are null. Times are nanoseconds, sizes are bytes.
        notes: What was read, if a choice was made.
        left_out: Parts that were left out to keep the answer short, and how to get them.
    """

    headline: str
    analysis: AnalysisResult
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class ThreadResult(Struct, frozen=True):
    """A thread of a rank.

    Attributes:
        name: Its name.
        thread: Its native thread id, 0 if unknown.
        is_locked: Whether the kernel shows it waiting for a lock without a timeout; null if unknown.
        frames: Its stack as `function at file:line`, innermost first.
    """

    name: str
    thread: int
    is_locked: bool | None
    frames: tuple[str, ...]


class RankStacks(Struct, frozen=True):
    """The stacks of a rank.

    Attributes:
        rank: Global rank.
        pid: Its process id within its own PID namespace.
        running: Whether the process is alive.
        written: When the rank wrote the stacks, UTC; null if there are none.
        source: `asked` for an answer to this call, `earlier` for stacks written before, `signal` for the stack of one
            thread that a signal made the process write while native code held the GIL; null if there are none.
        problem: Why there are no stacks, or no new ones; null if there are.
        threads: Its threads.
    """

    rank: int
    pid: int
    running: bool
    written: str | None
    source: str | None
    problem: str | None
    threads: tuple[ThreadResult, ...]


class StacksAnswer(Struct, frozen=True):
    """Stacks of ranks.

    Attributes:
        run: Id of the run, 32 hex digits; null if it has none.
        ranks: The requested ranks.
        left_out: Parts that were left out to keep the answer short, and how to get them.
    """

    run: str | None
    ranks: tuple[RankStacks, ...]
    left_out: tuple[str, ...] = ()


class ReportAnswer(Struct, frozen=True):
    """A report.

    Attributes:
        report: Its conclusions, as of `heading.made`. Times in it are local to the machine that made it.
        left_out: Parts that were left out to keep the answer short, and how to get them.
    """

    report: ReportConclusions
    left_out: tuple[str, ...] = ()
