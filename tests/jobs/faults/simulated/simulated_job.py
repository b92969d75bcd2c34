"""Jobs on a clock of their own: ranks that run programs, write real tapes, and are watched by a real `StallWatch`.

Between two events nothing changes but ages. So the watch polls only where a poll can matter, at the interval that it
asks for: where something has been open for nearly the threshold, where a rank has called nothing for so long that its
stack is requested, after a death, during a stall, and when a window of calls is complete. `test_healthy.py` checks that
all other polls report nothing.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from otel_torchdist.judge.stall.events import Event
from otel_torchdist.judge.stall.run_watch import RunWatch
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.world.following.channels import LENGTH
from otel_torchdist.model.kinds import Flag, How, TapeState
from otel_torchdist.tape.layout import Word
from tests.jobs.faults.simulated.simulated_deaths import SimulatedDeaths
from tests.jobs.faults.simulated.simulated_rank import (
    SECOND,
    STEP,
    Compute,
    Expect,
    Group,
    Lane,
    Meet,
    Meeting,
    Pass,
    Place,
    Program,
    SimulatedRank,
    Start,
)

START_NS = 1_000 * SECOND
THRESHOLD_S = 10.0
THRESHOLD_NS = round(THRESHOLD_S * SECOND)
NEARLY_S = 0.75
"""How long before the threshold the watch starts to check open operations."""
ASKED_S = THRESHOLD_S * 3 / 4
"""How long after its last call a rank that calls nothing is checked, because its stack is then requested."""
POLLED_AFTER = 400
"""Maximum operations of a rank between two polls."""
FORGOTTEN_AFTER_S = 60.0


@dataclass
class Watched:
    """What has been watched.

    Attributes:
        seconds: Simulated time in which the watch ran.
        steps: Training steps, each counted once for all its ranks.
        looked: How often the watch was really polled.
        events: What it has reported, with the time in seconds.
    """

    seconds: float = 0.0
    steps: int = 0
    looked: int = 0
    events: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])


class SimulatedJob:
    """Runs a job and watches it.

    Attributes:
        watched: What has been seen so far.
        now_ns: The current simulated time.
    """

    def __init__(self, directory: Path, program: Program, size: int, seed: int, every_check: bool = False) -> None:
        """Start the ranks.

        Args:
            directory: For the tapes.
            program: What each rank does.
            size: Number of ranks.
            seed: For the moments at which things happen.
            every_check: Poll at every interval, also where nothing can be seen.
        """
        self.watched = Watched()
        self.now_ns = START_NS
        self._directory = directory
        self._program = program
        self._chance = random.Random(seed)
        self._every_check = every_check
        self._watch = StallWatch(StallRules(THRESHOLD_NS), deaths=SimulatedDeaths(self._died_ns))
        self._run = 1
        self._ranks: dict[int, SimulatedRank] = {}
        self._dead: list[SimulatedRank] = []
        self._due: list[tuple[int, int, int, Callable[[], None]]] = []
        self._turn = 0
        self._meetings: dict[Place, Meeting] = {}
        self._next_check_ns = START_NS
        self._wants_check = False
        self._resumed_ns = 0
        self._tolerance_ns: dict[tuple[int, int], int] = {}
        self._start(size)

    def _start(self, size: int) -> None:
        for rank in range(size):
            one = SimulatedRank(self._directory, rank, size, self._run, self.now_ns, self._program)
            self._ranks[rank] = one
            self._watch.follow(one.reader)
            self._wants_check = True
            self._after(0, one, lambda one=one: self._go_on(one, one.main))

    # --- what happens -----------------------------------------------------------------------------------------

    def until(self, steps: int, seconds: float = math.inf) -> Watched:
        """Run until rank 0 has taken `steps` steps, the job was watched for `seconds`, or programs have ended."""
        while self.watched.steps < steps and self.watched.seconds < seconds and self._due:
            self._next()
        return self.watched

    def run_for(self, seconds: float) -> None:
        """Run for some time."""
        end_ns = self.now_ns + round(seconds * SECOND)
        while self._due and self._due[0][0] <= end_ns:
            self._next()
        self._check_until(end_ns)
        self._set_time(end_ns)

    def suspend(self, seconds: float) -> None:
        """Suspend the whole job and its agent, as a scheduler does."""
        self._check_until(self.now_ns)
        paused_ns = round(seconds * SECOND)
        self.now_ns += paused_ns
        self._resumed_ns = self.now_ns
        self._due = [(at_ns + paused_ns, turn, rank, action) for at_ns, turn, rank, action in self._due]
        self._next_check_ns = self.now_ns + self._chance.randrange(SECOND // 4)

    def restart(self, size: int, pause_s: float = 10.0) -> None:
        """End all ranks at nearly the same moment, as a launcher does, and start as many as there are places now."""
        self._due, self._meetings = [], {}
        for one in self._ranks.values():
            one.dies_ns = self.now_ns + self._chance.randrange(SECOND // 20)
        for one in sorted(self._ranks.values(), key=lambda one: one.dies_ns):
            self._check_until(one.dies_ns)
            self._set_time(one.dies_ns)
            one.tape.close()
            self._dead.append(one)
        self._ranks = {}
        self._check_until(self.now_ns + round(pause_s * SECOND))
        self._set_time(self.now_ns + round(pause_s * SECOND))
        self._run += 1
        self._start(size)

    def close(self) -> None:
        """Remove the tapes."""
        for one in [*self._ranks.values(), *self._dead]:
            one.close()

    def _next(self) -> None:
        at_ns, _, _, action = heapq.heappop(self._due)
        self._check_until(at_ns)
        self._set_time(at_ns)
        action()

    def _set_time(self, at_ns: int) -> None:
        self.watched.seconds += (at_ns - self.now_ns) / SECOND
        self.now_ns = at_ns

    def _after(self, pause_ns: int, one: SimulatedRank, action: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._due, (self.now_ns + pause_ns, self._turn, one.rank, action))

    def _go_on(self, one: SimulatedRank, lane: Lane) -> None:
        """Let a thread do its next actions until it has to wait."""
        for action in lane.program:
            if isinstance(action, Compute):
                lane.frame = action.frame
                self._after(round(action.seconds * SECOND), one, lambda: self._go_on(one, lane))
                return
            if isinstance(action, Meet):
                if not self._meet(one, lane, action):
                    return
            elif isinstance(action, Pass):
                if not self._pass(one, lane, action):
                    return
            elif isinstance(action, Start):
                started = one.start(action)
                self._after(0, one, lambda started=started: self._go_on(one, started))
            elif isinstance(action, Expect):
                one.tape.expect_until(self.now_ns + round(action.seconds * SECOND) if action.seconds else 0)
            elif action is STEP:
                one.tape.step_ended(one.step, self.now_ns, one.step)
                one.step += 1
                self.watched.steps += one.rank == 0
            elif not self._wait(one, lane):
                return
        if lane is one.main:
            one.tape.finish(TapeState.FINISHED)

    def _meet(self, one: SimulatedRank, lane: Lane, action: Meet) -> bool:
        """Enter a collective; returns whether the rank goes on at once."""
        group = action.group
        number = one.enter(lane, group, group, action.operation, self.now_ns, int(Flag.ASYNC) if action.is_async else 0)
        place = group, one.counts[group]
        meeting = self._meetings.get(place)
        if meeting is None:
            meeting = self._meetings[place] = Meeting(len(group.ranks), action.lasts_s)
        meeting.arrived[one.rank] = number, lane
        if action.is_async:
            one.tape.mark(number, Word.RETURNED, 1000, How.CALL)
            lane.in_flight.append(meeting)
        else:
            lane.waits_for.add(number)
        if len(meeting.arrived) == meeting.expected:
            self._all_there(place, meeting)
        return action.is_async

    def _pass(self, one: SimulatedRank, lane: Lane, action: Pass) -> bool:
        ends = (one.rank, action.peer) if action.is_send else (action.peer, one.rank)
        everybody = Group("default_pg", tuple(range(len(self._ranks))))
        key, operation = ("pass", *ends), "send" if action.is_send else "recv"
        number = one.enter(lane, key, everybody, operation, self.now_ns, int(Flag.POINT_TO_POINT), action.peer)
        place = key, one.counts[key]
        meeting = self._meetings.get(place)
        if meeting is None:
            meeting = self._meetings[place] = Meeting(2, 0.001)
        if action.is_send:
            one.end(number, self.now_ns + 1000)  # small messages are sent at once
        else:
            lane.waits_for.add(number)
        meeting.arrived[one.rank] = number, lane
        if len(meeting.arrived) == meeting.expected:
            self._all_there(place, meeting)
        return action.is_send

    def _wait(self, one: SimulatedRank, lane: Lane) -> bool:
        """Wait for all operations in flight; returns whether all of them are over."""
        left = [meeting for meeting in lane.in_flight if not meeting.over]
        for meeting in left:
            number, _ = meeting.arrived[one.rank]
            one.tape.mark(number, Word.WAIT_ENTERED, self.now_ns - one.open[number], How.CALL)
            lane.waits_for.add(number)
        lane.in_flight = []
        return not left

    def _all_there(self, place: Place, meeting: Meeting) -> None:
        del self._meetings[place]
        if place[1] % LENGTH == 0:
            self._wants_check = True  # from now on a window of calls can be compared
        some = next(iter(meeting.arrived))
        self._after(round(meeting.lasts_s * SECOND), self._ranks[some], lambda: self._over(meeting))

    def _over(self, meeting: Meeting) -> None:
        meeting.over = True
        for rank, (number, lane) in meeting.arrived.items():
            one = self._ranks[rank]
            if number in one.open:
                one.end(number, self.now_ns)
            if number in lane.waits_for:
                lane.waits_for.discard(number)
                if not lane.waits_for:
                    self._after(0, one, lambda one=one, lane=lane: self._go_on(one, lane))

    def _died_ns(self, nonce: int) -> int | None:
        return next((one.dies_ns for one in self._dead if one.reader.identity.nonce == nonce), None)

    # --- what is seen -----------------------------------------------------------------------------------------

    def _check_until(self, end_ns: int) -> None:
        """Poll as often as the watch asks, from the last poll to the time of the next event."""
        while self._next_check_ns < end_ns:
            if not self._matters():
                since_ns = min(self._soon(end_ns), default=end_ns)
                if since_ns > self._next_check_ns:
                    passed = -(-(min(since_ns, end_ns) - self._next_check_ns) // (SECOND // 4))
                    self._next_check_ns += passed * (SECOND // 4)
                    self._as_if_checked(self._next_check_ns - SECOND // 4)
                    continue
            at_ns = self._next_check_ns
            self._look(at_ns)
            self._next_check_ns = at_ns + round(self._watch.next_check_s * SECOND)

    def _as_if_checked(self, at_ns: int) -> None:
        """Let the watch know what skipped polls would have seen: that the heartbeats of the ranks continue."""
        watched = self._run_watch()
        if watched is not None:
            watched._ages._standstill._sign_ns = max(
                watched._ages._standstill._sign_ns, at_ns - at_ns % SECOND, self._resumed_ns
            )

    def _run_watch(self) -> RunWatch | None:
        detector = self._watch._detector
        runs = detector._runs.items() if detector is not None else ()
        return next((watched for (_, _, run), watched in runs if run == self._run), None)

    def _matters(self) -> bool:
        if self._every_check or self._wants_check or self._dead or self._watch.ongoing:
            return True
        watched = self._run_watch()
        if watched is None or watched.is_hurried:
            return True
        return any(one.calls >= POLLED_AFTER for one in self._ranks.values())

    def _soon(self, end_ns: int) -> Iterable[int]:
        """When a poll can matter, if nothing happens until `end_ns`.

        Operations open for nearly their tolerance have to be checked, as do ranks whose stack is requested or ready.
        Operations that are expected to take long count from the last poll.
        """
        watched = self._run_watch()
        spared, expected = (watched._ages._spared, watched._ages._expected) if watched is not None else ({}, set())
        for one in self._ranks.values():
            nonce = one.reader.identity.nonce
            for number, entered_ns in one.open.items():
                key = nonce, number
                if key in expected:
                    yield end_ns - SECOND // 4
                    continue
                tolerance_ns = max(THRESHOLD_NS, self._tolerance_ns.get(key, 0))
                yield max(entered_ns, spared.get(key, 0)) + tolerance_ns - round(NEARLY_S * SECOND)
            if one.asked_ns:
                yield one.answers_ns
            elif not any(lane.waits_for for lane in one.lanes):
                yield one.called_ns + round(ASKED_S * SECOND)

    def _remember_tolerance(self) -> None:
        watched = self._run_watch()
        world = watched._world if watched is not None else None
        views = world.ranks.values() if world is not None else ()
        self._tolerance_ns = {
            (view.nonce, operation.record.number): operation.tolerance_ns for view in views for operation in view.open
        }

    def _look(self, now_ns: int) -> None:
        self._wants_check = False
        for one in [*self._ranks.values(), *self._dead]:
            if not one.tape.closed:
                one.beat(now_ns, self._resumed_ns)
                one.answer(now_ns)
            one.calls = 0
            self._watch.observe(one.reader.identity.nonce, one.reader.poll())
        self.watched.looked += 1
        for event in self._watch.check(now_ns):
            self.watched.events.append(((now_ns - START_NS) / SECOND, event))
        self._remember_tolerance()
        for one in self._ranks.values():
            one.note_request(now_ns)
        for one in [one for one in self._dead if now_ns - one.dies_ns > FORGOTTEN_AFTER_S * SECOND]:
            self._dead.remove(one)
            self._watch.forget(one.reader.identity.nonce)
            one.close()
