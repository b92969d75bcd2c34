"""The demo in lines, for pipes and logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from types import TracebackType
from typing import Final

from rich.console import Console

from otel_torchdist.cli.alarm import Alarm
from otel_torchdist.cli.demo.view import Picture, View
from otel_torchdist.cli.rank_rows import RankRow
from otel_torchdist.telemetry.rank_ranges import compress_ranks

PROGRESS_EVERY_S: Final = 5.0


class PlainView(View):
    """Writes a line for each event, and one now and then that says how things are."""

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        self._console = console
        self._began = self._shown = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """There is nothing to put back."""

    def say(self, text: str) -> None:
        """See `View`."""
        age_s = time.monotonic() - self._began
        self._console.print(f"{age_s:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def training_says(self, line: str) -> None:
        """See `View`."""
        self.say(f"training: {line}")

    def sound(self, alarm: Alarm) -> None:
        """See `View`."""
        self.say(f"STALL: {alarm.text}")
        if alarm.place:
            self.say(f"       {alarm.place}")

    def show(self, picture: Picture) -> None:
        """See `View`."""
        now = time.monotonic()
        if now - self._shown < PROGRESS_EVERY_S:
            return
        self._shown = now
        self.say("; ".join([f"step {picture.step} of {picture.steps}", *_crowds(picture)]))


def _crowds(picture: Picture) -> Iterator[str]:
    """Who does the same, in the order of their ranks: `ranks 0-1,3 stalled in all_reduce #80 for 6.1 s`."""
    rows = sorted(picture.rows, key=_activity)
    for (doing, operation), crowd in groupby(rows, key=_activity):
        members = list(crowd)
        ranks = compress_ranks(row.rank for row in members)
        text = f"{'rank' if len(members) == 1 else 'ranks'} {ranks} {doing}"
        age_s = max((row.age_s for row in members if row.age_s is not None), default=None)
        if operation and age_s is not None:
            text += f", {operation} for {age_s:.1f} s"
        yield text


def _activity(row: RankRow) -> tuple[str, str]:
    return row.doing.value, row.operation
