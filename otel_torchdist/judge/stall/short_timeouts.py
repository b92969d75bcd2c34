"""Warns of groups whose backend may end a stall before it is reported and acted on."""

from __future__ import annotations

from collections.abc import Mapping

from otel_torchdist.judge.stall.events import TimeoutShort
from otel_torchdist.judge.verdict.giving_up import backend_of, ends_waits
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.snapshot import WorldSnapshot


class ShortTimeouts:
    """Checks the groups of one run until the first timeout that is too short."""

    def __init__(self, needed_ns: int) -> None:
        """Report timeouts no longer than `needed_ns`."""
        self._needed_ns = needed_ns
        self._seen: dict[int, Mapping[str, GroupView]] = {}
        self._has_reported = False

    def check(self, world: WorldSnapshot) -> list[TimeoutShort]:
        """Check the groups that are new since the last pass."""
        if self._has_reported:
            return []
        for view in world.ranks.values():
            if self._seen.get(view.nonce) is view.groups:  # a new group makes a new mapping
                continue
            self._seen[view.nonce] = view.groups
            short = [group for group in view.groups.values() if self._is_short(group)]
            if short:
                self._has_reported = True
                self._seen.clear()
                group = min(short, key=lambda group: group.name.timeout_ms)
                return [TimeoutShort(world.run, group, backend_of(group.name), self._needed_ns)]
        return []

    def _is_short(self, group: GroupView) -> bool:
        name = group.name
        return 0 < name.timeout_ms * 1_000_000 <= self._needed_ns and ends_waits(name.at_timeout)
