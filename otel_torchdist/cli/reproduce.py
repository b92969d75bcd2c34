"""`otel-torchdist reproduce`: writes a script that hangs like a recorded run, to attach to an issue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from otel_torchdist.analysis.reproducer.facts import ScriptOrigin
from otel_torchdist.analysis.reproducer.plan import plan
from otel_torchdist.analysis.reproducer.script import NotReproducibleError
from otel_torchdist.analysis.reproducer.source import source_of
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import RunDirectory, RunOrDumps, Threshold, WorldSize
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.targets import target_of, warn
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.times import day_and_time
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis, diagnose_run
from otel_torchdist.runs.diagnosis.leftovers import diagnose_leftovers
from otel_torchdist.runs.targets import Target, chosen_run
from otel_torchdist.sources.flight.history import last_calls_of
from otel_torchdist.sources.history.tapes import TapeHistory


@dataclass(frozen=True, slots=True)
class RecordedHang:
    """A verdict and the calls behind it.

    Attributes:
        world: The snapshot that the verdict is about.
        origin: Describes the run or dumps.
        warnings: Unreadable parts of the evidence.
    """

    verdict: Verdict
    world: WorldSnapshot
    histories: Sequence[RankHistory]
    origin: ScriptOrigin
    warnings: tuple[str, ...]


def evidence_of_run(config: Config, wanted: Target, threshold_s: float | None) -> RecordedHang:
    """Read the tapes of a run; ends the command if no run matches or the run has no verdict.

    Without `threshold_s`, an open operation counts as stalled after the configured time.
    """
    run = chosen_run(config, wanted.run, wanted.run_dir).run
    try:
        diagnosis, histories = diagnosis_and_calls(run, StallRules.from_config(config, threshold_s))
    except TapeError as error:
        fail(str(error), ExitCode.NOTHING_FOUND)
    judgment = diagnosis.post_mortem
    if judgment.verdict is None and judgment.of_agents is not None:
        no_script("the verdict comes from the agents of all nodes, and the tapes of this node do not show it")
    if judgment.verdict is None:
        no_script("there is no verdict: no rank held the others up for long enough")
    when = day_and_time(diagnosis.wall_ns(diagnosis.moment_ns))
    source = f"run {run.label}, {when}" if run.label else when
    origin = ScriptOrigin(source, diagnosis.verdict_description, run.world_size, _versions())
    return RecordedHang(judgment.verdict, judgment.moment.world, histories, origin, diagnosis.warnings)


def evidence_of_dumps(
    config: Config, paths: Sequence[Path], world_size: int, threshold_s: float | None
) -> RecordedHang:
    """Read dumps of flight recorders; ends the command if there are none, or no verdict on them.

    Args:
        config: The settings.
        paths: Folders, files and archives.
        world_size: Number of ranks given by the user, or 0.
        threshold_s: Seconds after which an open operation counts as stalled; None for the configured value.
    """
    leftovers = diagnose_leftovers(paths, StallRules.from_config(config, threshold_s), world_size)
    if leftovers.dumps is None:
        reasons = "; ".join(leftovers.notes) or "nothing that can be read"
        fail(f"{', '.join(map(str, paths))}: no dump of a flight recorder: {reasons}", ExitCode.NOTHING_FOUND)
    dumps = leftovers.dumps
    if not dumps.verdicts:
        no_script("there is no verdict: no rank held the others up for long enough")
    first, *separate = dumps.verdicts
    left_out = [f"left out, needs a separate script: {dumps.text_of(verdict)}" for verdict in separate]
    source = f"dumps of the flight recorder of {len(dumps.dumps)} ranks"
    origin = ScriptOrigin(source, dumps.description_of(first), dumps.moment.world_size, _versions())
    histories = last_calls_of(dumps.dumps, world_size)
    return RecordedHang(first, dumps.moment.world, histories, origin, (*leftovers.notes, *left_out))


def diagnosis_and_calls(run: Run, rules: StallRules) -> tuple[Diagnosis, list[RankHistory]]:
    """Read all tapes of a run once: its diagnosis, and the calls behind it, by ascending rank.

    Raises:
        TapeError: None of the tapes can be read any more.
    """
    recorders = {tape.identity.rank: TapeHistory(tape) for tape in run.tapes}
    diagnosis = diagnose_run(run, rules, lambda tape, batch: recorders[tape.identity.rank].observe(batch))
    return diagnosis, [recorders[rank].history() for rank in sorted(recorders)]


def no_script(reason: str) -> NoReturn:
    """End the command because no script can reproduce the hang."""
    fail(f"no script: {reason}", ExitCode.NOT_REPRODUCIBLE)


def _versions() -> str:
    """Describe the installed versions. Dumps do not record the job's torch; it is usually the one installed here."""
    ours = f"otel-torchdist {version('otel-torchdist')}"
    try:
        return f"{ours}, beside torch {version('torch')}"
    except PackageNotFoundError:
        return ours


_DEFAULT_NAME: Final = "hang.py"


def reproduce(
    target: RunOrDumps = None,
    run_dir: RunDirectory = None,
    threshold: Threshold = None,
    world_size: WorldSize = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="The file to write; without it, the standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """To report a hang: write a short script that hangs in the same way under torchrun, and needs torch only.

    The script makes the last calls of the ranks in the verdict, with gloo on one machine: the same operations, groups,
    shapes and order. A rank that did not enter an operation does not enter it in the script either.
    """
    if output is not None and output.exists() and not force:
        fail(f"{shown(output)} exists; --force replaces it", ExitCode.NO_DIRECTORY)
    evidence = _evidence(target or [], run_dir, world_size, threshold)
    warn(evidence.warnings)
    try:
        script = plan(evidence.verdict, evidence.world, evidence.histories, evidence.origin)
    except NotReproducibleError as error:
        no_script(str(error))
    _write(source_of(script, _DEFAULT_NAME if output is None else output.name), output, force)


def _evidence(target: Sequence[str], run_dir: Path | None, world_size: int, threshold_s: float | None) -> RecordedHang:
    config, wanted = Config.from_environment(), target_of(target, run_dir)
    if wanted.paths:
        return evidence_of_dumps(config, wanted.paths, world_size, threshold_s)
    return evidence_of_run(config, wanted, threshold_s)


def _write(source: str, output: Path | None, force: bool) -> None:
    if output is None:
        typer.echo(source, nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="ascii") as file:
            file.write(source)
    except OSError as error:
        fail(f"{shown(output)}: {error.strerror}", ExitCode.NO_DIRECTORY)
    typer.echo(f"otel-torchdist: wrote {shown(output)}", err=True)
