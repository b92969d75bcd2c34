"""The stall that a timeline shows, judged as `diagnose` does."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.archive.reading import is_archive
from otel_torchdist.cli.diagnose.diagnosis import diagnose_run
from otel_torchdist.cli.diagnose.leftovers import judged
from otel_torchdist.cli.histories import Source, reopened, source_of_run, timed_source_of
from otel_torchdist.cli.targets import Target, chosen_run
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.flight.reading.reader import read_dumps
from otel_torchdist.timeline.model import DrawnStall
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.rules import StallRules


@dataclass(frozen=True, slots=True)
class Judged:
    """What is known about the end of a job.

    Attributes:
        source: Its calls.
        incident: The stall; None if nothing has stalled.
        moment_ns: The last moment, since the epoch; None if that is not known.
        centre_ns: When the stall began, else the last moment, likewise.
    """

    source: Source
    incident: DrawnStall | None
    moment_ns: int | None
    centre_ns: int | None


def judge(wanted: Target) -> Judged:
    """Judge a run or dumps; ends the command if there is no such run. Archives and traces hold no state of a hang."""
    config = Config.from_environment()
    if wanted.paths and all(map(is_archive, wanted.paths)):
        return Judged(timed_source_of(wanted), None, None, None)
    rules = StallRules.from_config(config, None)
    return _judge_dumps(wanted, rules) if wanted.paths else _judge_run(wanted, config, rules)


def _judge_run(wanted: Target, config: Config, rules: StallRules) -> Judged:
    chosen = chosen_run(config, wanted.run, wanted.run_dir)
    source = source_of_run(chosen.run)
    source.warnings.extend(chosen.unreadable)
    try:
        with reopened(chosen.run) as anew:
            diagnosis = diagnose_run(anew, rules)
    except TapeError:
        return Judged(source, None, None, None)  # reading the same tapes reports why
    verdict, moment_ns = diagnosis.found.verdict, diagnosis.wall_ns(diagnosis.moment_ns)
    if verdict is None:
        return Judged(source, None, moment_ns, moment_ns)
    incident = _incident(verdict, diagnosis.verdict_text)
    return Judged(source, incident, moment_ns, diagnosis.wall_ns(incident.since_ns))


def _judge_dumps(wanted: Target, rules: StallRules) -> Judged:
    dumps = read_dumps(wanted.paths).dumps
    source = timed_source_of(wanted)
    if not dumps:
        return Judged(source, None, None, None)
    found = judged(dumps, rules, 0)
    if not found.verdicts:
        return Judged(source, None, found.moment_ns, found.moment_ns)
    incident = _incident(found.verdicts[0], found.text_of(found.verdicts[0]))
    return Judged(source, incident, found.moment_ns, incident.since_ns)


def _incident(verdict: Verdict, text: str) -> DrawnStall:
    return DrawnStall(text, verdict.since_ns, verdict.ranks, verdict.waiting, verdict.operation_id)
