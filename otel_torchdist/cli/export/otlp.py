"""`export --otlp`: sends the calls in dumps as spans."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.export.recording_spans.recording import (
    ImportedFindings,
    Judgment,
    Provenance,
    Recording,
    WantedCalls,
    choose,
    recording_of,
)
from otel_torchdist.cli.export.recording_spans.trace import Traces, traces_of
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import warn
from otel_torchdist.config import Config
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.text import compress_ranks, name_ranks
from otel_torchdist.runs.diagnosis.leftovers import judge_dumps
from otel_torchdist.sources.flight.groups import RecordedGroups
from otel_torchdist.sources.flight.history import CondensedDump, history_of
from otel_torchdist.sources.flight.reading.reader import read_dumps, read_whole
from otel_torchdist.sources.flight.reading.sources import count_files
from otel_torchdist.system.progress import progress, track
from otel_torchdist.system.this_process.commands import without_collecting_garbage
from otel_torchdist.telemetry.export.environment import imported_resource
from otel_torchdist.telemetry.export.outputs import Delivery, file_delivery, otlp_delivery
from otel_torchdist.telemetry.export.queued_sink import ExportError
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

_ENDPOINT: Final = "--otlp-endpoint"
_CAN_REPEAT: Final = "the same command may be repeated: Jaeger shows each span once"


@dataclass(frozen=True, slots=True)
class SpanOptions:
    """The calls that become spans, and the destination of the spans.

    Attributes:
        endpoint: The receiver; '' for OTEL_EXPORTER_OTLP_ENDPOINT.
        output: A new file to write instead; None to send.
        threshold_s: Age from which an open operation counts as stalled; None for the configured value.
        world_size: Number of ranks in the job; 0 to take it from the dumps.
        is_dry_run: Whether nothing is sent or written.
    """

    endpoint: str
    output: Path | None
    choice: WantedCalls
    threshold_s: float | None
    world_size: int
    is_dry_run: bool


def export_otlp(paths: Sequence[Path], options: SpanOptions) -> None:
    """Send the calls in dumps as spans, with a trace for each verdict; ends the command on errors."""
    logging.basicConfig(stream=sys.stderr, format="otel-torchdist: %(message)s")
    _check_endpoint(options.endpoint)
    if options.output is not None and options.endpoint:
        raise typer.BadParameter("cannot be combined with --otlp-endpoint", param_hint="--output")
    if not paths:
        raise typer.BadParameter("name dumps: files, folders or archives", param_hint="--otlp")
    rules = StallRules.from_config(Config.from_environment(), options.threshold_s)
    recording = _read(paths, rules, options.choice, options.world_size)
    if not recording.chosen:
        ranks_with_file = compress_ranks(rank.rank for rank in recording.ranks)
        wanted = compress_ranks(options.choice.ranks or ())
        fail(f"--ranks {wanted}: no file of these; there are files of ranks {ranks_with_file}", ExitCode.NOTHING_FOUND)
    traces = traces_of(recording)
    for line in _summary(recording, traces):
        typer.echo(line)
    if options.is_dry_run:
        typer.echo(f"{len(traces.spans):,} spans; nothing was sent")
        return
    if options.output is None:
        _send(traces.spans, _sender(options.endpoint))
    else:
        _write(traces.spans, options.output)


def _check_endpoint(endpoint: str) -> None:
    if endpoint and urlsplit(endpoint).scheme not in ("http", "https"):
        raise typer.BadParameter(f"{endpoint!r} begins with neither http:// nor https://.", param_hint=_ENDPOINT)


def _read(paths: Sequence[Path], rules: StallRules, wanted: WantedCalls, world_size: int) -> Recording:
    with progress("Reading dumps", "dumps", count_files(paths)) as advance:
        read = read_dumps(paths, advance=advance)
    warn(read.notes)
    if not any(condensed.calls for condensed in read.dumps):
        named = ", ".join(str(path) for path in paths)
        fail(f"{named}: no dump of a flight recorder with a call in it", ExitCode.NOTHING_FOUND)
    findings = _findings(read.dumps, rules, world_size)
    groups = RecordedGroups([condensed.dump for condensed in read.dumps], world_size)
    with without_collecting_garbage():
        dumps = track(read_whole(paths, read.dumps), "Reading calls", "dumps", len(read.dumps))
        histories = (history_of(dump, groups) for dump in dumps)
        return recording_of(findings, choose(findings, wanted), histories)


def _findings(dumps: tuple[CondensedDump, ...], rules: StallRules, world_size: int) -> ImportedFindings:
    judgment = judge_dumps(dumps, rules, world_size)
    provenance = Provenance(
        source="flight recorder",
        files=len(dumps),
        formats=tuple(f"{major}.{minor}" for major, minor in sorted({condensed.dump.version for condensed in dumps})),
        libraries=tuple(sorted({condensed.dump.library_version for condensed in dumps} - {""})),
        missing=judgment.moment.unseen,
    )
    judgments = tuple(Judgment(verdict, judgment.text_of(verdict)) for verdict in judgment.verdicts)
    return ImportedFindings(provenance, judgment.moment.world, judgments, rules.threshold_ns)


def _summary(recording: Recording, traces: Traces) -> Iterator[str]:
    provenance = recording.findings.provenance
    if provenance.missing:
        yield f"no file of {name_ranks(provenance.missing)}"
    present = [rank.rank for rank in recording.ranks]
    files = "1 file" if provenance.files == 1 else f"{provenance.files} files"
    yield f"run {run_label(traces.run_id)}: {files}, {name_ranks(present)}, {recording.calls:,} calls"
    for trace in (*traces.stalls, traces.calls):
        root = trace[0]
        yield f"trace {root.trace_id:032x}  {root.name}, {len(trace):,} spans"
        if trace is not traces.calls:
            yield f"  {root.error}"
    yield from _left_out(recording)


def _left_out(recording: Recording) -> Iterator[str]:
    chosen = recording.chosen
    older = sum(rank.omitted for rank in chosen)
    if older:
        most = max(rank.calls for rank in chosen)
        yield (
            f"left out: {older:,} older calls; the newest {recording.choice.last} of each rank are shown, "
            f"--last {most} shows all, which takes Jaeger longer"
        )
    ranks_left_out = [rank.rank for rank in recording.ranks if rank not in chosen]
    if ranks_left_out:
        yield f"left out: {name_ranks(ranks_left_out)}; --ranks chooses them"


def _sender(endpoint: str) -> Delivery:
    try:
        return otlp_delivery(imported_resource(), endpoint, _ENDPOINT)
    except ExportError as error:
        fail(f"nothing was sent: {error}", ExitCode.NOT_SENT)


def _send(spans: tuple[FinishedSpan, ...], delivery: Delivery) -> None:
    total = len(spans)
    try:
        _deliver(spans, delivery)
    except ExportError as error:
        fail(
            f"{delivery.accepted:,} of {total:,} spans were sent ({delivery.name}): {error}; {_CAN_REPEAT}",
            ExitCode.NOT_SENT,
        )
    except KeyboardInterrupt:
        fail(f"interrupted: {delivery.accepted:,} of {total:,} spans were sent; {_CAN_REPEAT}", ExitCode.INTERRUPTED)
    if delivery.rejected:
        fail(f"{delivery.rejected:,} of {total:,} spans were rejected ({delivery.name})", ExitCode.NOT_SENT)
    typer.echo(f"sent {delivery.accepted:,} spans ({delivery.name})")


def _write(spans: tuple[FinishedSpan, ...], output: Path) -> None:
    """Write spans to a new file, which exists only if it is complete."""
    if output.exists():
        fail(f"{output}: exists already; nothing was written", ExitCode.NOT_WRITTEN)
    try:
        delivery = file_delivery(imported_resource(), output)
    except OSError as error:
        fail(f"{output}: {os.strerror(error.errno or 0)}; nothing was written", ExitCode.NOT_WRITTEN)
    is_complete = False
    try:
        _deliver(spans, delivery)
        is_complete = True
    except ExportError as error:
        fail(f"{error}; nothing was written", ExitCode.NOT_WRITTEN)
    finally:
        if not is_complete:
            output.unlink(missing_ok=True)
    typer.echo(f"sent {delivery.accepted:,} spans ({delivery.name})")


def _deliver(spans: tuple[FinishedSpan, ...], delivery: Delivery) -> None:
    with progress("Sending spans", "spans", len(spans)) as advance:
        delivery.send(spans, advance)
