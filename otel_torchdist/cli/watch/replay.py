"""`otel-torchdist watch --replay`: the table of a job at its last moment, from a bundle of evidence or its tapes."""

from __future__ import annotations

import time

from rich.console import Console

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.rank_table import rows_at_terminal
from otel_torchdist.cli.output.terminal import Alarm
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import warn
from otel_torchdist.cli.watch.passive import RateMeter, Rates
from otel_torchdist.cli.watch.views import Screen, WatchRow, still_of
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.times import day_and_time
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis, diagnose_run
from otel_torchdist.runs.targets import Target, chosen_run
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader


def replay(wanted: Target, config: Config, rules: StallRules, console: Console) -> None:
    """Print the table of a job at its last moment; ends the command if there is no such job.

    Args:
        wanted: The job.
        config: The settings.
        rules: Defines a stall.
        console: Shows the table.
    """
    if wanted.paths:
        fail(
            f"{wanted.paths[0]}: neither a bundle of evidence nor a job directory: only these have the state of ranks",
            ExitCode.NOTHING_FOUND,
        )
    chosen = chosen_run(config, wanted.run, wanted.run_dir)
    warn(chosen.unreadable)
    batches: dict[int, list[Batch]] = {tape.identity.nonce: [] for tape in chosen.run.tapes}

    def keep(tape: TapeReader, batch: Batch) -> None:
        batches.setdefault(tape.identity.nonce, []).append(batch)

    try:
        diagnosis = diagnose_run(chosen.run, rules, keep)
    except TapeError as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    rates = {
        tape.identity.rank: _rates(tape, batches[tape.identity.nonce], diagnosis.moment_ns) for tape in chosen.run.tapes
    }
    screen = _screen(diagnosis, chosen.run, rates)
    moment_ns = diagnosis.wall_ns(diagnosis.moment_ns)
    ago_s = max(time.time_ns() - moment_ns, 0) / 1e9
    console.print(f"as of {day_and_time(moment_ns)}, {ago_s:,.0f} s ago", markup=False, highlight=False)
    console.print(still_of(screen, chosen.run.place, console.width))


def _rates(tape: TapeReader, batches: list[Batch], moment_ns: int) -> Rates:
    meter = RateMeter(tape.identity.monotonic_ns)
    for batch in batches:
        meter.observe(batch, moment_ns)
    return meter.rates(moment_ns)


def _screen(diagnosis: Diagnosis, run: Run, rates: dict[int, Rates]) -> Screen:
    post_mortem = diagnosis.post_mortem
    rows = rows_at_terminal(post_mortem.moment.world, post_mortem.verdict, diagnosis.threshold_s)
    alarm = Alarm(diagnosis.verdict_text, "") if post_mortem.has_verdict else None
    none = Rates(0.0, 0.0)
    return Screen(run.label, run.world_size, [WatchRow(row, rates.get(row.rank, none), 0.0) for row in rows], alarm)
