"""Watches a job until it ends, and reports events."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import Final

from otel_torchdist.cli.output.terminal import Alarm, ReportHandler, alarm
from otel_torchdist.cli.output.text import captured, fates
from otel_torchdist.cli.watch.passive import Observation, PassiveWatch
from otel_torchdist.cli.watch.views import View, screen_of
from otel_torchdist.judge.stall.events import IncidentResolved, Occasion, VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import resolution
from otel_torchdist.judge.verdict.earlier_verdict import verdict_of_all_nodes
from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.reports.finding import Finding
from otel_torchdist.model.snapshot import RankView, WorldSnapshot, life_in
from otel_torchdist.model.text import name_ranks
from otel_torchdist.node.job.kept_results import AgentsVerdict, read_agents_verdict
from otel_torchdist.system.this_process.commands import StopSignals

POLL_S: Final = 0.25
LAST_VERDICT_S: Final = 2.0
"""Minimum wait after the last rank has ended: the verdict on a death may depend on the fate of the other ranks."""

_logger = logging.getLogger("otel_torchdist")


class WatchSession:
    """A watch over one job."""

    def __init__(self, directory: Path, watch: PassiveWatch, view: View, keep_s: float) -> None:
        """Set up a session.

        Args:
            directory: The job directory.
            watch: Reads the job's tapes.
            view: Shows reports and screens.
            keep_s: Seconds to wait for restarts, unless all ranks have finished cleanly.
        """
        self._directory = directory
        self._watch = watch
        self._view = view
        self._keep_s = keep_s
        self._verdict: VerdictGiven | None = None
        self._of_agents: AgentsVerdict | None = None
        self._run = 0
        self._lives: dict[int, RankLife] = {}
        self._was_live = False
        self._ended_at: float | None = None

    @property
    def run_id(self) -> int:
        """Id of the watched run; 0 if unknown."""
        return self._run

    def run(self, stop: StopSignals) -> None:
        """Watch until the job ends or a signal arrives."""
        handler = ReportHandler(self._view.report, logging.WARNING)
        _logger.addHandler(handler)
        try:
            while stop.received is None:
                observation = self._watch.observe()
                if observation is None:
                    self._view.report("the job has ended: its ranks are gone, and never had a run id")
                    return
                self._process(observation)
                if self._is_over(observation.world):
                    self._report_end(observation.world)
                    return
                stop.wait(POLL_S)
        finally:
            _logger.removeHandler(handler)

    def _process(self, observation: Observation) -> None:
        self._report_lives(observation)
        for event in observation.events:
            if event.incident.run in observation.helpers:
                self._view.report(f"helper processes, run {run_label(event.incident.run)}: {_described(event)}")
            else:
                self._report(event)
        current = self._with_current_lines(observation.world)
        verdict = current.verdict if current is not None else None
        shown = self._of_all_nodes(observation, verdict) or (alarm(current) if current is not None else None)
        self._view.show(screen_of(observation, verdict, shown, self._watch.rules.threshold_s))

    def _report(self, event: VerdictGiven | IncidentResolved | Finding) -> None:
        match event:
            case VerdictGiven():
                self._verdict = event
                self._view.report_stall(alarm(event), event.occasion is not Occasion.GROWN)
            case IncidentResolved():
                self._verdict = None
                self._view.report(_described(event))
            case Finding():
                self._view.report(_described(event))

    def _of_all_nodes(self, observation: Observation, local: Verdict | None) -> Alarm | None:
        """Return the verdict of all nodes' agents if it covers more than local tapes show."""
        world_size = max(tape.identity.world_size for tape in observation.tapes)
        written = read_agents_verdict(self._directory, observation.world.run)
        verdict = verdict_of_all_nodes(written, observation.world, world_size, local)
        previous, self._of_agents = self._of_agents, verdict
        if verdict is None:
            if previous is not None and local is None:
                self._view.report("stall over, as the agents of all nodes report")
            return None
        reported = Alarm(f"{verdict.text} (reported by the agents of all nodes)", "")
        if previous is None or (previous.kind, previous.ranks) != (verdict.kind, verdict.ranks):
            self._view.report_stall(reported, is_new=True)
        return reported

    def _with_current_lines(self, world: WorldSnapshot) -> VerdictGiven | None:
        """Return the verdict with its current lines of code and age."""
        event = self._verdict
        if event is None or not event.verdict.roll.standings.keys() <= world.ranks.keys():
            return event
        return dataclasses.replace(event, verdict=locate(world, event.verdict), world=world)

    def _report_lives(self, observation: Observation) -> None:
        world = observation.world
        if world.run and world.run != self._run:
            self._run = world.run
            self._view.report(f"run {run_label(world.run)}")
        new = {view.nonce: view.rank for view in world.in_order if view.nonce not in self._lives}
        if new:
            how = captured(tape.identity for tape in observation.tapes if tape.identity.nonce in new)
            self._view.report(f"found {name_ranks([*new.values()])}{f', {how}' if how else ''}")
        changed = [view for view in world.in_order if self._has_ended_since(view)]
        for clause in fates(changed):
            self._view.report(clause)
        self._lives |= {view.nonce: life_in(view) for view in world.in_order}

    def _has_ended_since(self, view: RankView) -> bool:
        life = life_in(view)
        return life is not RankLife.RUNNING and self._lives.get(view.nonce) is not life

    def _is_over(self, world: WorldSnapshot) -> bool:
        lives = {life_in(view) for view in world.ranks.values()}
        if RankLife.RUNNING in lives:
            self._was_live = True
            self._ended_at = None
            return False
        if self._ended_at is None:
            self._ended_at = time.monotonic()
        may_restart = self._was_live and lives != {RankLife.FINISHED}
        return not may_restart or time.monotonic() - self._ended_at >= max(self._keep_s, LAST_VERDICT_S)

    def _report_end(self, world: WorldSnapshot) -> None:
        what = "recording is off, and the job may go on" if world.switched_off_ns else "the job has ended"
        self._view.report(f"{what}: {'; '.join(fates(world.in_order))}")
        if any(life_in(view) is not RankLife.FINISHED for view in world.ranks.values()):
            label = run_label(world.run)
            self._view.report(f"what each rank was doing last: otel-torchdist diagnose {label}".rstrip())


def _described(event: VerdictGiven | IncidentResolved | Finding) -> str:
    match event:
        case VerdictGiven():
            return f"{'still' if event.occasion is Occasion.GROWN else 'STALL'}: {alarm(event).text}"
        case IncidentResolved():
            return f"stall over: {resolution(event.verdict, event.outcome, event.length_ns)}"
        case Finding():
            return f"finding: {event.sentence}"
