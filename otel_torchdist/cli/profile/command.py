"""`otel-torchdist profile`: its options."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import RunDirectory, complete_run
from otel_torchdist.cli.output.terminal import print_lines
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.output.work import SECONDS
from otel_torchdist.cli.profile.children import ChildProfile, Children
from otel_torchdist.cli.profile.formats import folded, lines_of, speedscope
from otel_torchdist.cli.profile.taking import SampledRank, take
from otel_torchdist.config import Config
from otel_torchdist.model.text import name_ranks, readable
from otel_torchdist.node.job.requests.profile_file import ProfileError
from otel_torchdist.runs.targets import chosen_run
from otel_torchdist.system.progress import progress
from otel_torchdist.tape.identity import shares_pids
from otel_torchdist.tape.layout import MAX_PROFILE_RATE, MAX_PROFILE_S
from otel_torchdist.tape.reading.reader import TapeReader


class Format(enum.Enum):
    """A format of the output."""

    TEXT = "text"
    FOLDED = "folded"
    SPEEDSCOPE = "speedscope"


def profile(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="The first digits of a run's id; without it, the run that started last.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = "",
    run_dir: RunDirectory = None,
    rank: Annotated[int, typer.Option(min=0, help="The rank, which must run on this node.")] = 0,
    seconds: Annotated[float, typer.Option(min=0.1, max=MAX_PROFILE_S, help="Duration of the profile.")] = 5.0,
    rate: Annotated[int, typer.Option(min=1, max=MAX_PROFILE_RATE, help="Samples per second.")] = 100,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="`text` for the lines in which each thread spends its time, `folded` for flame graphs, or "
            "`speedscope` for [speedscope.app](https://www.speedscope.app).",
        ),
    ] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
    ] = None,
) -> None:
    """To see where one rank of a live job spends its time: sample its threads, their operations and its children.

    The rank samples its own stacks for the requested duration: nothing is traced or stopped. py-spy, if installed,
    samples children such as DataLoader workers. Without py-spy, the report counts what the kernel shows of each child:
    the system call that it is in, and the file that the call is about.
    """
    tape = _tape_of(run, run_dir, rank)
    pid = tape.identity.pid
    children = Children(pid, seconds, rate)
    sees_children = shares_pids(tape.identity)
    if sees_children:
        children.begin()
    profiles: list[ChildProfile] = []
    try:
        with progress(f"Sampling rank {rank}", SECONDS, math.ceil(seconds)):
            sampled_rank = take(tape, seconds, rate, children.observe if sees_children else _ignore_children)
        profiles = children.end()
    except ProfileError as error:
        children.end()
        fail(f"rank {rank} (pid {pid}): {error}", ExitCode.NOTHING_FOUND)
    _write(sampled_rank, profiles, rank, pid, output_format, output)


def _ignore_children() -> None:
    """Replace `Children.observe` in another PID namespace, where the children's pids mean nothing."""


def _tape_of(prefix: str, run_dir: Path | None, rank: int) -> TapeReader:
    """Return the tape of a rank; ends the command if the rank does not run on this node."""
    run = chosen_run(Config.from_environment(), prefix, run_dir).run
    live = {tape.identity.rank: tape for tape in run.tapes if tape.is_alive()}
    if rank in live:
        return live[rank]
    ranks_text = f"{name_ranks(sorted(live))} here" if live else "none of its ranks runs here"
    where = f"run {run.label}" if run.label else readable(str(run.directory))
    fail(f"{where}: rank {rank} does not run on this node ({ranks_text})", ExitCode.NOTHING_FOUND)


def _write(
    sampled_rank: SampledRank,
    children: list[ChildProfile],
    rank: int,
    pid: int,
    output_format: Format,
    output: Path | None,
) -> None:
    if output_format is Format.TEXT and output is None:
        print_lines(lines_of(sampled_rank, children, rank, pid))
        return
    text = "\n".join(_lines(sampled_rank, children, rank, pid, output_format)) + "\n"
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{readable(str(output))} cannot be written: {error.strerror}", ExitCode.NOT_WRITTEN)
    typer.echo(
        f"{readable(str(output))}: {sampled_rank.count} samples of rank {rank} in {sampled_rank.seconds:.1f} s",
        err=True,
    )


def _lines(
    sampled_rank: SampledRank, children: list[ChildProfile], rank: int, pid: int, output_format: Format
) -> Iterator[str]:
    if output_format is Format.SPEEDSCOPE:
        yield json.dumps(speedscope(sampled_rank, f"rank {rank}"))
    elif output_format is Format.FOLDED:
        yield from folded(sampled_rank)
        for child in children:
            lines = child.stacks or tuple(f"{doing} {count}" for doing, count in child.doing.items())
            yield from (f"child {child.pid};{line}" for line in lines)
    else:
        yield from (line.plain for line in lines_of(sampled_rank, children, rank, pid))
