"""Detects ranks that repeatedly come last without a stall, and the time that the other ranks lose.

A rank's lateness counts from the arrival of the second-last rank: it is the time that all ranks would gain if the late
rank were as fast as the second-last. Uneven data makes different ranks late at different times. So a rank is suspected
only if its lateness is not chance, and if the loss remains significant without its few longest delays. Only ranks of
one node, which share a clock, are compared. Stages of a pipeline arrive at their joint calls in a fixed order, so they
are counted, but never reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from otel_torchdist.judge.stall.attributes import of_group
from otel_torchdist.judge.stall.findings.restraint import Latenesses, exchanging, is_pipeline, sent_between
from otel_torchdist.judge.verdict.rules import expects
from otel_torchdist.judge.verdict.wording.machine import describe_slow_rank
from otel_torchdist.judge.verdict.wording.sentence import with_short_start
from otel_torchdist.model.calls import Channel, GroupView, TimedWindow, last_of
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.finding import Finding, FindingKind, FindingOver, JudgedWorld, Severity
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import elapsed
from otel_torchdist.telemetry import semconv

PASSES_APART_NS: Final = 1_000_000_000
MIN_SPAN_NS: Final = 5_000_000_000
"""Minimum time in ns for which a group is observed before anything is reported about it."""
MIN_SHARE: Final = 0.10
"""Minimum share of their time that the others lose to a straggler."""
MIN_BLAME: Final = 0.6
"""Minimum share of all lateness that is due to one rank."""
MAX_CALLS: Final = 1_024
MAX_SPAN_NS: Final = 300_000_000_000
"""Time in ns after which a suspicion that may be chance is dropped, if `MAX_CALLS` calls were also observed."""
MIN_DATA_SHARE: Final = 0.6
"""Minimum share of the loss explained by a rank's additional data wait, for the data to be named as the reason."""
CONFIRMATIONS: Final = 2
"""Number of consecutive judgments that start a finding on a rank, or end it."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that repeatedly comes last, and costs the others time.

    Attributes:
        channel: The calls that it is late for.
        group: Their group.
        operation: Name of the latest of these calls.
        share: Share of their time that the others lose.
        mean_late_s: Average lateness in seconds.
        calls: Number of calls observed.
        last: Number of these calls in which it came last.
        compared: Ranks that were compared.
        data_share: Share of its time spent waiting for data, if that explains most of the loss; else 0.
        usual_data_share: Median of the others' shares.
    """

    channel: Channel
    group: GroupView
    operation: str
    rank: int
    share: float
    mean_late_s: float
    calls: int
    last: int
    compared: tuple[int, ...]
    data_share: float = 0.0
    usual_data_share: float = 0.0

    @property
    def text(self) -> str:
        """The rank's lateness and the others' loss, as a sentence."""
        data = f" because it waits for data ({self.data_share:.0%} of its time, the others {self.usual_data_share:.0%})"
        why = data if self.data_share else ""
        return (
            f"rank {self.rank} is a straggler{why}: it came last in {self.last} of the last {self.calls} calls of "
            f"{self.group.title}, on average {elapsed(self.mean_late_s) * 1e3:,.0f} ms after all others, which lose "
            f"{self.share:.0%} of their time; {len(self.compared)} of {len(self.group.members)} ranks were compared"
        )

    def finding(self, judged: JudgedWorld) -> Finding:
        """Return the finding on the straggler."""
        world = judged.world
        return Finding(
            kind=FindingKind.STRAGGLER,
            severity=Severity.WARNING,
            incident=judged.incident(f"straggler {self.channel.group} {self.rank} {world.taken_ns}"),
            ranks=(self.rank,),
            group=self.group.key,
            operation=self.operation,
            text=with_short_start(self.text + describe_slow_rank(world, self.rank)),
            world=world,
            attributes={
                semconv.VERDICT_COVERAGE: f"{len(self.compared)}/{len(self.group.members)}",
                semconv.STRAGGLER_SHARE: self.share,
                semconv.STRAGGLER_LATENESS: self.mean_late_s,
                semconv.OPERATION: self.operation,
                **of_group(self.group),
            },
        )


@dataclass(frozen=True, slots=True)
class Lateness:
    """Counts of the last-arriving ranks in one group's calls since the last pass.

    Attributes:
        group: The group's key.
        calls: Number of calls.
        waited_ns: Wait for the last rank, averaged over all ranks and summed over the calls.
        last: By rank, the number of calls in which it came last.
        late_ns: By rank, the time for which the others waited for it alone.
    """

    group: str
    calls: int
    waited_ns: int
    last: Mapping[int, int]
    late_ns: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ArrivalsCompared:
    """Counts of the last-arriving ranks in a run's calls.

    Attributes:
        run: 128-bit id.
        lateness: One entry per group.
    """

    run: int
    lateness: tuple[Lateness, ...]


class _Tally(Latenesses):
    """Counts of one channel since it was last judged."""

    def __init__(self) -> None:
        super().__init__()
        self.span_ns = 0
        self.waited_ns = 0


@dataclass(slots=True)
class _Channel:
    """State of one channel.

    Attributes:
        compared: Number of the last window compared; -1 for none.
        tally: Counts since the channel was last judged.
        suspect: The rank suspected at that time; None if there was none.
        held: Number of consecutive judgments with the same suspect.
        reported: The reported rank; None if there is none.
        sent: Messages by sender and receiver, up to the last suspicion.
        step: The step that all ranks had reached at that time.
        judged_ns: When the channel was last judged; 0 for never.
        data_wait_ns: Data wait by rank, up to the last judgment.
    """

    compared: int = -1
    tally: _Tally = field(default_factory=_Tally)
    suspect: int | None = None
    held: int = 0
    reported: int | None = None
    sent: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    step: int = 0
    judged_ns: int = 0
    data_wait_ns: Mapping[int, int] = field(default_factory=dict[int, int])

    def data_shares(self, views: Iterable[RankView], now_ns: int) -> dict[int, float]:
        """Return, by rank, the share of time spent waiting for data since the last judgment."""
        before, begin_ns = self.data_wait_ns, self.judged_ns
        self.judged_ns, self.data_wait_ns = now_ns, {view.rank: view.data_wait_ns for view in views}
        if not begin_ns or now_ns <= begin_ns:
            return {}
        elapsed_ns = now_ns - begin_ns
        return {
            rank: (wait_ns - before[rank]) / elapsed_ns
            for rank, wait_ns in self.data_wait_ns.items()
            if rank in before and wait_ns >= before[rank]
        }


class Stragglers:
    """Detects the stragglers of one run.

    Attributes:
        gone: Channel and rank of former stragglers that ended in the last pass.
        lateness: The counts of the last pass.
    """

    def __init__(self) -> None:
        self._compared_ns = 0
        self._expected_ns = 0
        self._channels: dict[Channel, _Channel] = {}
        self.gone: list[tuple[Channel, int]] = []
        self.lateness: list[Lateness] = []

    def find(self, world: WorldSnapshot) -> list[Straggler]:
        """Return the stragglers to report now."""
        self.gone, self.lateness = [], []
        if world.taken_ns - self._compared_ns < PASSES_APART_NS:
            return []
        self._compared_ns = world.taken_ns
        if any(expects(view, world) for view in world.ranks.values()):
            self._expected_ns = world.taken_ns
        views = _timed_channels(world)
        self._channels = {channel: known for channel, known in self._channels.items() if channel in views}
        compared = [self._compare_channel(channel, views[channel], world.taken_ns) for channel in views]
        return [straggler for straggler in compared if straggler is not None]

    def _compare_channel(self, channel: Channel, views: list[RankView], now_ns: int) -> Straggler | None:
        known = self._channels.setdefault(channel, _Channel())
        counted = _Tally()
        for number in _common_numbers(channel, views, known.compared):
            known.compared = number
            times = {view.rank: _window(view, channel, number).times for view in views}
            if min(arrivals[0] for arrivals in times.values()) > self._expected_ns:  # skip windows with announced waits
                _compare(times, counted)
        if not counted.calls:
            return None
        self.lateness.append(Lateness(channel.group, counted.calls, counted.waited_ns, counted.last, counted.late_ns))
        tally = known.tally
        tally.update(counted)
        tally.span_ns += counted.span_ns
        if tally.span_ns < MIN_SPAN_NS or _needs_more_calls(tally):
            return None
        known.tally = _Tally()
        shares = known.data_shares(views, now_ns)
        return self._judge(channel, known, tally, views, shares)

    def _judge(
        self,
        channel: Channel,
        known: _Channel,
        tally: _Tally,
        views: list[RankView],
        data_shares: Mapping[int, float],
    ) -> Straggler | None:
        suspect = _suspect(tally)
        if suspect is not None:
            before, known.sent = known.sent, sent_between(views)
            first, known.step = known.step, min(view.step for view in views)
            suspect = None if is_pipeline(exchanging(known.sent - before, known.step - first)) else suspect
        known.held = known.held + 1 if suspect == known.suspect else 1
        known.suspect = suspect
        if known.held < CONFIRMATIONS or suspect == known.reported:
            return None
        if known.reported is not None:
            self.gone.append((channel, known.reported))
        known.reported = suspect
        view = next((view for view in views if view.rank == suspect), None)
        if suspect is None or view is None or channel.group not in view.groups:
            return None
        share = min(tally.late_ns[suspect] / tally.span_ns, 1.0)  # spans begin after the first call of each window
        usual = median([other_share for rank, other_share in data_shares.items() if rank != suspect] or [0.0])
        own = data_shares.get(suspect, 0.0)
        waits_for_data = own - usual >= MIN_DATA_SHARE * share
        return Straggler(
            channel=channel,
            group=view.groups[channel.group],
            operation=_operation(view, channel),
            rank=suspect,
            share=share,
            mean_late_s=tally.late_ns[suspect] / tally.calls / 1e9,
            calls=tally.calls,
            last=tally.last[suspect],
            compared=tuple(sorted(view.rank for view in views)),
            data_share=own if waits_for_data else 0.0,
            usual_data_share=usual if waits_for_data else 0.0,
        )


def over_of(channel: Channel, rank: int, run: int) -> FindingOver:
    """Return the event that a rank is no longer a straggler."""
    return FindingOver(FindingKind.STRAGGLER, run, (rank,), channel.group)


def _suspect(tally: _Tally) -> int | None:
    """Return the rank that costs the others time, if this is not chance; None otherwise."""
    rank = _most_late(tally)
    return rank if rank is not None and _is_usual(rank, tally) else None


def _needs_more_calls(tally: _Tally) -> bool:
    """Return whether more calls are needed: one rank causes most of the lateness, but may do so by chance."""
    rank = _most_late(tally)
    is_short = tally.calls < MAX_CALLS or tally.span_ns < MAX_SPAN_NS
    return rank is not None and is_short and not _is_usual(rank, tally)


def _most_late(tally: _Tally) -> int | None:
    """Return the rank that causes most of the lateness and costs the others a significant share of time, or None."""
    rank, late_ns = tally.latest
    is_blamed = late_ns >= MIN_BLAME * sum(tally.late_ns.values()) and late_ns >= MIN_SHARE * tally.span_ns
    return rank if is_blamed else None


def _is_usual(rank: int, tally: _Tally) -> bool:
    """Return whether a rank's lateness is usual: not chance, and not caused by a few calls."""
    return tally.usual_ns(rank) >= MIN_SHARE * tally.span_ns and not tally.is_chance(rank)


def _timed_channels(world: WorldSnapshot) -> dict[Channel, list[RankView]]:
    """Return the channels for which several ranks of this node report arrivals, with these ranks."""
    by_channel: dict[Channel, list[RankView]] = {}
    for view in world.in_order:
        if view.is_remote or not view.alive:
            continue
        for channel in view.arrivals:
            if channel.kind is RecordKind.OPERATION and view.progress[channel].aligned:
                by_channel.setdefault(channel, []).append(view)
    return {channel: views for channel, views in by_channel.items() if len(views) > 1}


def _common_numbers(channel: Channel, views: list[RankView], after: int) -> list[int]:
    """Return the windows that all ranks have and that were not compared yet, in order."""
    first, *others = [{window.number for window in view.arrivals[channel]} for view in views]
    return sorted(number for number in first.intersection(*others) if number > after)


def _window(view: RankView, channel: Channel, number: int) -> TimedWindow:
    return next(window for window in view.arrivals[channel] if window.number == number)


def _compare(times: Mapping[int, tuple[int, ...]], tally: _Tally) -> None:
    """Count, for each call of a window, the last rank and its lateness after the one before it."""
    ranks = list(times)
    arrivals = list(zip(*times.values(), strict=True))
    for arrived in arrivals:
        last = last_of(arrived)
        if last is not None:
            tally.add(ranks[last.nth], last.late_ns)
            tally.waited_ns += arrived[last.nth] - sum(arrived) // len(arrived)
    tally.span_ns += max(arrivals[-1]) - max(arrivals[0])


def _operation(view: RankView, channel: Channel) -> str:
    signature = view.progress[channel].recent[-1].signature if view.progress[channel].recent else None
    return signature.operation if signature is not None else "operation"
