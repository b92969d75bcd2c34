"""At which positions calls of different ranks can be compared.

Traces number calls from 2026 on. No two begin and end at the same moment, so what one rank calls before the trace of
another begins has no counterpart there: only positions that the traces of all members hold are compared.
"""

from __future__ import annotations

from collections.abc import Iterable

from otel_torchdist.profiles.profile import ProfiledCall, RankProfile


class ProfilePositions:
    """The positions in each group that all traces of its users hold."""

    def __init__(self, profiles: Iterable[RankProfile]) -> None:
        """Find, for each group, from where to where that is."""
        self._shared: dict[str, tuple[int, int]] = {}
        for profile in profiles:
            own: dict[str, tuple[int, int]] = {}
            for call in profile.calls:
                name, position = call.arguments.group, call.sequence
                if name is not None and position:
                    first, last = own.get(name, (position, position))
                    own[name] = (min(first, position), max(last, position))
            for name, (first, last) in own.items():
                known = self._shared.get(name, (first, last))
                self._shared[name] = (max(known[0], first), min(known[1], last))

    def is_shared(self, call: ProfiledCall) -> bool:
        """Whether the position of a call can be compared with those of other ranks."""
        name = call.arguments.group
        if name is None or not call.sequence:
            return False
        first, last = self._shared[name]
        return first <= call.sequence <= last
