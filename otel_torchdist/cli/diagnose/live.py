"""`otel-torchdist diagnose --pid`: inspects a live job that was not recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import typer
from rich.text import Text

from otel_torchdist.cli.diagnose.leftovers import print_leftovers
from otel_torchdist.cli.diagnose.report import LABEL_WIDTH
from otel_torchdist.cli.diagnose.texts import lines_of_texts
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.terminal import print_json, print_lines
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import warn
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.text import have, name_ranks
from otel_torchdist.runs.diagnosis.leftovers import Leftovers, judge_dumps
from otel_torchdist.runs.diagnosis.result import SCHEMA, DiagnosisResult, result_of_leftovers
from otel_torchdist.runs.diagnosis.texts import (
    StackedRanks,
    TextFindings,
    TextVerdict,
    ToolFindingResult,
    judge_texts,
    stacked_ranks,
    text_verdict,
    tool_findings,
)
from otel_torchdist.sources.evidence.live_job import LiveJob, LiveRank, inspect_job
from otel_torchdist.sources.evidence.statements import Evidence
from otel_torchdist.sources.flight.history import CondensedDump, condense
from otel_torchdist.sources.flight.reading.decoding import DumpError, decode
from otel_torchdist.sources.flight.reading.reader import read_dumps


class LiveProcessResult(msgspec.Struct, frozen=True):
    """A process of a live job, as the kernel shows it.

    Attributes:
        rank: Global rank.
        local_rank: Rank on this node.
        pid: Its process id.
        command: Its command line.
        state: The state letter of its main thread, as in `/proc`.
        call: The system call that this thread is in; `running` if it is in none.
        waits_in: The kernel function in which this thread sleeps.
        threads: Number of its threads.
        running_threads: Number of its threads that run.
        children: Number of its children.
        oom_kills: Kills for memory counted by its cgroup.
    """

    rank: int | None
    local_rank: int | None
    pid: int
    command: str
    state: str | None
    call: str | None
    waits_in: str | None
    threads: int
    running_threads: int
    children: int
    oom_kills: int | None


class LiveJobResult(msgspec.Struct, frozen=True):
    """The output of `diagnose --pid --json`: a live job that was not recorded.

    Attributes:
        schema: 2.
        source: `live processes`.
        world_size: Number of the job's ranks.
        verdict: As in `TextsResult`.
        silent: As in `TextsResult`.
        stacks: As in `TextsResult`.
        findings: As in `TextsResult`, from stacks only.
        ranks: The processes.
        elsewhere: Ranks of the job without a process on this node.
        warnings: Reasons for processes that could not be inspected.
        recorded: The diagnosis from these ranks' flight recorders.
    """

    schema: int
    source: str
    world_size: int | None
    verdict: TextVerdict | None
    silent: tuple[int, ...]
    stacks: StackedRanks | None
    findings: tuple[ToolFindingResult, ...]
    ranks: tuple[LiveProcessResult, ...]
    elsewhere: tuple[int, ...]
    warnings: tuple[str, ...]
    recorded: DiagnosisResult | None


def diagnose_live(pids: Sequence[int], rules: StallRules, as_json: bool, asks_for_dumps: bool) -> None:
    """Inspect processes that are ranks or have started ranks, and print a report.

    Args:
        pids: Processes on this node.
        rules: Defines a stall.
        as_json: Whether to print one JSON document.
        asks_for_dumps: Whether to request dumps of the flight recorder.
    """
    job = inspect_job(pids, asks_for_dumps)
    leftovers = _recorded(job, rules)
    warn((*job.warnings, *leftovers.notes))
    if not job.ranks:
        fail("none of these processes can be inspected", ExitCode.NOTHING_FOUND)
    texts = judge_texts(job.statements, rules)
    if as_json:
        print_json(_result(job, texts, leftovers))
    else:
        print_lines(_lines(job, texts), LABEL_WIDTH)
        if leftovers.dumps is not None:
            print_lines([Text()])
            print_leftovers(leftovers)
    if leftovers.has_problem:
        raise typer.Exit(ExitCode.PROBLEM)


def _recorded(job: LiveJob, rules: StallRules) -> Leftovers:
    """Return the diagnosis from the ranks' flight recorders, with the stacks taken at the same time."""
    read = read_dumps(job.dumps)
    by_rank = {condensed.rank: _as_written(condensed) for condensed in read.dumps}
    notes = [*read.notes]
    for rank, content in job.answers.items():
        try:
            dump = condense(decode(content, rank, f"the debug server's answer for rank {rank}").dump)
            is_local = any(local.process.rank == rank for local in job.ranks)  # its times are by this node's clock
            by_rank[rank] = dump.up_to(job.requested_ns) if is_local else dump
        except DumpError as error:
            notes.append(f"the debug server's answer for rank {rank}: {error}")
    dumps = tuple(by_rank[rank] for rank in sorted(by_rank))
    evidence = Evidence(tuple(job.statements))
    recorded = judge_dumps(dumps, rules, job.world_size, evidence) if dumps else None
    return Leftovers(job.dumps, recorded, None, rules.threshold_s, tuple(notes))


def _as_written(dump: CondensedDump) -> CondensedDump:
    """Return a dump of a rank on this node, with the modification time of its file as its moment if it has none."""
    if dump.dump.until_ns is not None:
        return dump
    try:
        return dump.up_to(Path(dump.dump.path).stat().st_mtime_ns)
    except OSError:
        return dump


def _lines(job: LiveJob, texts: TextFindings) -> Iterator[Text]:
    local, size = len(job.ranks), job.world_size
    processes = "1 process" if local == 1 else f"{local} processes"
    yield Text(f"a live job without tapes: {f'{local} of {size} ranks' if size else processes} on this node")
    if texts.findings:
        yield Text()
        yield from lines_of_texts(texts)
    yield Text()
    for rank in job.ranks:
        yield Text.assemble((_name(rank), "bold"), f"  pid {rank.process.pid}  {rank.kernel.text}")
    if job.ranks_elsewhere:
        yield Text()
        elsewhere = job.ranks_elsewhere
        text = f"{name_ranks(elsewhere)}  unknown: {have(elsewhere)} no known process on this node"
        yield Text(text, style="yellow")


def _name(rank: LiveRank) -> str:
    return f"rank {rank.process.rank}" if rank.process.rank is not None else "rank unknown"


def _result(job: LiveJob, texts: TextFindings, recorded: Leftovers) -> LiveJobResult:
    return LiveJobResult(
        schema=SCHEMA,
        source="live processes",
        world_size=job.world_size or None,
        verdict=text_verdict(texts),
        silent=texts.silent,
        stacks=stacked_ranks(texts),
        findings=tool_findings(texts),
        ranks=tuple(map(_process, job.ranks)),
        elsewhere=job.ranks_elsewhere,
        warnings=job.warnings,
        recorded=result_of_leftovers(recorded) if recorded.dumps is not None else None,
    )


def _process(rank: LiveRank) -> LiveProcessResult:
    kernel = rank.kernel
    return LiveProcessResult(
        rank=rank.process.rank,
        local_rank=rank.process.local_rank,
        pid=rank.process.pid,
        command=rank.process.command,
        state=kernel.state or None,
        call=kernel.call or None,
        waits_in=kernel.waits_in or None,
        threads=kernel.threads,
        running_threads=kernel.running,
        children=kernel.children,
        oom_kills=kernel.oom_kills,
    )
