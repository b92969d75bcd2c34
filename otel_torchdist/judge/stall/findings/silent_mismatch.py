"""Detects mismatched calls although nothing stalls. gloo, for example, silently adds up bytes of different types.

Each mismatch is reported once, and only if it has not been reported as the cause of a stall. When a run is over, the
remaining calls are compared immediately. For ranks of other nodes, often only the digest of a window of calls is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.judge.stall.attributes import of_mismatch, of_operation_id
from otel_torchdist.judge.verdict.wording.calls import describe_mismatch
from otel_torchdist.judge.verdict.wording.sentence import with_short_start
from otel_torchdist.judge.world.group_names import CreatedGroups
from otel_torchdist.judge.world.mismatch import Field, Mismatch, compare_strictly, find_difference, with_divergence
from otel_torchdist.model.calls import Arrival, Channel, OperationId, Progress, Window
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.finding import Finding, FindingKind, JudgedWorld, Severity
from otel_torchdist.model.reports.incident import incident_name
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

PASSES_APART_NS: Final = 1_000_000_000
MAX_REPORTED: Final = 64
"""Maximum number of mismatches reported for a run. More would add no information."""


class SilentMismatches:
    """Compares the calls of one run's ranks.

    Attributes:
        wanted: Windows in which ranks of other nodes differ and only the digests are known.
    """

    def __init__(self) -> None:
        self._compared_ns = 0
        self._compared: dict[Channel, tuple[Progress, ...]] = {}
        self._windows: dict[Channel, ComparedWindows] = {}
        self._suspected_ns: dict[Channel, int] = {}
        self._pending: dict[Channel, Mismatch] = {}
        self._reported: set[Channel] = set()
        self._reported_dimensions: set[Channel] = set()
        self._order = GroupOrder()
        self.wanted: frozenset[tuple[Channel, int]] = frozenset()

    def find(self, world: WorldSnapshot) -> list[Mismatch]:
        """Return the mismatches to report now."""
        if world.taken_ns - self._compared_ns < PASSES_APART_NS:
            return []
        self._compared_ns = world.taken_ns
        self._compare(world, only_changed=True)
        return [*self._order.find(world), *self._due(world.taken_ns)]

    def conclude(self, world: WorldSnapshot, is_last: bool = True) -> list[Mismatch]:
        """Compare all remaining calls, and return the mismatches to report at the end, without any delay.

        Call this again while windows are `wanted`, since they may reveal more mismatches, but not after `is_last`.
        """
        self._compare(world, only_changed=False)
        unsettled = {channel for channel, _ in self.wanted} if not is_last else set[Channel]()
        settled = [mismatch for channel, mismatch in self._pending.items() if channel not in unsettled]
        return [*self._order.find(world, is_last=True), *self._report(settled)]

    def _compare(self, world: WorldSnapshot, only_changed: bool) -> None:
        wanted: set[tuple[Channel, int]] = set()
        for channel, views in _channels(world).items():
            if channel in self._reported:
                continue
            if channel in self._pending:
                wanted |= self._compare_again(channel, views, world.taken_ns)
            elif self._has_changed(channel, views) or not only_changed:
                wanted |= self._compare_channel(channel, views, world.taken_ns)
        self.wanted = frozenset(wanted)

    def _compare_channel(self, channel: Channel, views: list[RankView], now_ns: int) -> set[tuple[Channel, int]]:
        windows = self._windows.setdefault(channel, ComparedWindows())
        for view in views:
            windows.add(view.rank, view.windows.get(channel, ()))
        number = windows.first_differing
        dimensions = channel not in self._reported_dimensions
        # Snapshots of other nodes are older, and their latest calls may be missing from our latest ones.
        mismatch = find_difference(views, channel, dimensions)
        if number is None and mismatch is None:
            return set()
        self._suspected_ns.setdefault(channel, now_ns)
        calls = windows.calls_in(number) if number is not None else None
        if number is not None and calls is not None:
            mismatch = _first_difference(channel, calls, dimensions) or mismatch
            windows.settle(number)
            if mismatch is None:
                self._suspected_ns.pop(channel, None)
        if mismatch is not None:
            self._pending[channel] = mismatch
            return set()
        return {(channel, number)} if number is not None and calls is None else set()

    def _compare_again(self, channel: Channel, views: list[RankView], now_ns: int) -> set[tuple[Channel, int]]:
        """Compare again with ranks of other nodes that were not seen before. Their calls may change the minority."""
        before = self._pending[channel]
        if sum(len(ranks) for _, ranks in before.parties) >= len(views):
            return set()
        del self._pending[channel]
        self._windows.pop(channel, None)
        wanted = self._compare_channel(channel, views, now_ns)
        self._pending.setdefault(channel, before)
        return wanted

    def mark_reported(self, mismatch: Mismatch) -> None:
        """Mark a mismatch as reported by a verdict."""
        if mismatch.field is Field.MEMBERS:
            self._order.mark_reported()
            return
        channel = mismatch.operation_id.channel
        if mismatch.field is Field.DIMENSIONS:
            self._reported_dimensions.add(channel)  # a worse mismatch may follow
        else:
            self._reported.add(channel)
        self._pending.pop(channel, None)
        self._windows.pop(channel, None)

    def _has_changed(self, channel: Channel, views: list[RankView]) -> bool:
        progress = tuple(view.progress[channel] for view in views)
        before = self._compared.get(channel)
        self._compared[channel] = progress
        if before is None or len(before) != len(progress):
            return True
        return any(old is not new for old, new in zip(before, progress, strict=True))

    def _due(self, now_ns: int) -> list[Mismatch]:
        due = [
            mismatch
            for channel, mismatch in self._pending.items()
            if now_ns - self._suspected_ns[channel] >= REPORTED_AFTER_NS
        ]
        return self._report(due)

    def _report(self, due: list[Mismatch]) -> list[Mismatch]:
        due = due[: max(MAX_REPORTED - len(self._reported), 0)]
        for mismatch in due:
            self.mark_reported(mismatch)
        return due


def finding_of(mismatch: Mismatch, judged: JudgedWorld) -> Finding:
    """Return the finding on calls that do not match."""
    operation_id = mismatch.operation_id
    group = judged.world.group(operation_id.channel.group)
    # The name contains the time, since a restarted agent may report the mismatch again.
    name = f"calls {incident_name(operation_id)} {judged.world.taken_ns}"
    return Finding(
        kind=FindingKind.MISMATCHED,
        severity=Severity.ERROR,
        incident=judged.incident(name),
        ranks=mismatch.ranks,
        group=operation_id.channel.group,
        operation=mismatch.operation,
        text=with_short_start(f"{describe_mismatch(mismatch, group)}; it did not hang, but results may be wrong"),
        world=judged.world,
        attributes=of_mismatch(mismatch) | of_operation_id(mismatch.operation, group, operation_id),
    )


def _channels(world: WorldSnapshot) -> Mapping[Channel, list[RankView]]:
    """Return the collectives of every group reported by several ranks, with these ranks."""
    by_channel: dict[Channel, list[RankView]] = {}
    for view in world.in_order:
        for channel, progress in view.progress.items():
            if channel.kind is RecordKind.OPERATION and not channel.is_point_to_point and progress.aligned:
                by_channel.setdefault(channel, []).append(view)
    return {channel: views for channel, views in by_channel.items() if len(views) > 1}


def _first_difference(channel: Channel, calls: Mapping[int, tuple[Arrival, ...]], dimensions: bool) -> Mismatch | None:
    for index in range(min(map(len, calls.values()))):
        by_rank = {rank: arrivals[index] for rank, arrivals in calls.items()}
        mismatch = compare_strictly(by_rank, OperationId(channel, next(iter(by_rank.values())).sequence), dimensions)
        if mismatch is not None:
            history = [{rank: arrivals[earlier] for rank, arrivals in calls.items()} for earlier in range(index + 1)]
            return with_divergence(mismatch, history)
    return None


MAX_NUMBERS: Final = 64
"""Maximum number of windows remembered. Windows of other nodes arrive some seconds late."""


class ComparedWindows:
    """The windows of one channel's calls on all ranks: their digests, and the calls themselves where known."""

    def __init__(self) -> None:
        self._digests: dict[int, dict[int, int]] = {}
        self._calls: dict[tuple[int, int], tuple[Arrival, ...]] = {}
        self._settled: dict[int, frozenset[int]] = {}

    def add(self, rank: int, windows: Iterable[Window]) -> None:
        """Add the windows of a rank."""
        for window in windows:
            digests = self._digests.setdefault(window.number, {})
            digests[rank] = window.digest
            # One copy per digest is enough: ranks with the same digest made the same calls.
            if window.arrivals:
                self._calls[window.number, window.digest] = window.arrivals
        while len(self._digests) > MAX_NUMBERS:
            oldest = min(self._digests)
            for digest in set(self._digests.pop(oldest).values()):
                self._calls.pop((oldest, digest), None)
            self._settled.pop(oldest, None)

    def settle(self, number: int) -> None:
        """Mark a window as compared. Its digests may differ although the calls match."""
        self._settled[number] = frozenset(self._digests[number].values())

    @property
    def first_differing(self) -> int | None:
        """The first window not yet compared in which digests differ; None if there is none."""
        odd = (
            number
            for number, digests in self._digests.items()
            if self._has_new_difference(number, set(digests.values()))
        )
        return min(odd, default=None)

    def _has_new_difference(self, number: int, digests: set[int]) -> bool:
        return len(digests) > 1 and not digests <= self._settled.get(number, frozenset())

    def calls_in(self, number: int) -> Mapping[int, tuple[Arrival, ...]] | None:
        """Return, by rank, the calls in a window; None unless they are known for all ranks."""
        digests = self._digests[number]
        if any((number, digest) not in self._calls for digest in digests.values()):
            return None
        return {rank: self._calls[number, digest] for rank, digest in digests.items()}


# --- orders of creation -----------------------------------------------------------------------------------------------
# Detects groups created in different orders although nothing stalls: their calls pair with the calls of other groups.
# This requires that the members of a group have different numbers for it, so that they cannot have met. Two groups with
# the same number and different members may both be valid, if they were created one after the other.


REPORTED_AFTER_NS: Final = 12_000_000_000
"""Time in ns from the detection of a mismatch to its report. With the default threshold, a stall that it causes is
reported before."""


class GroupOrder:
    """Compares the groups created by the ranks of one run. Reports a difference once."""

    def __init__(self) -> None:
        self._compared = 0
        self._mismatch: Mismatch | None = None
        self._detected_ns = 0
        self._is_reported = False

    def find(self, world: WorldSnapshot, is_last: bool = False) -> list[Mismatch]:
        """Return the mismatch to report now, if any.

        Args:
            world: The snapshot.
            is_last: Whether the run is over, so that a mismatch is reported without delay.
        """
        created = sum(len(view.groups) for view in world.ranks.values())
        if created != self._compared and self._mismatch is None:
            self._compared = created
            self._mismatch, self._detected_ns = _difference(world), world.taken_ns
        if self._mismatch is None or self._is_reported:
            return []
        if not is_last and world.taken_ns - self._detected_ns < REPORTED_AFTER_NS:
            return []
        self._is_reported = True
        return [self._mismatch]

    def mark_reported(self) -> None:
        """Record that a verdict has reported the difference."""
        self._is_reported = True


def _difference(world: WorldSnapshot) -> Mismatch | None:
    created = CreatedGroups(world.ranks.values())
    groups = {key: group for view in world.in_order for key, group in view.groups.items()}
    return next((mismatch for group in groups.values() if (mismatch := created.differ_in(group, is_new=False))), None)
