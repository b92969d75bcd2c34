"""A job in lines, for pipes and logs."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final

from rich.console import Console

from otel_torchdist.cli.alarm import Alarm
from otel_torchdist.cli.watch.picture import LATE, Picture, View, crowds

SUMMARY_EVERY_S: Final = 5.0


class PlainView(View):
    """Writes a line for each change, and one now and then that says how things are."""

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        self._console = console
        self._shown: float | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """There is nothing to put back."""

    def say(self, text: str) -> None:
        """See `View`."""
        self._console.print(f"{time.strftime('%H:%M:%S')}  {text}", markup=False, highlight=False, soft_wrap=True)

    def sound(self, alarm: Alarm, is_new: bool) -> None:
        """See `View`."""
        self.say(f"{'STALL' if is_new else 'still'}: {alarm.text}")
        if alarm.place and is_new:
            self.say(f"       {alarm.place}")

    def show(self, picture: Picture) -> None:
        """See `View`."""
        now = time.monotonic()
        if self._shown is not None and now - self._shown < SUMMARY_EVERY_S:
            return
        self._shown = now
        steps = sorted({one.row.step for one in picture.rows})
        at = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        pace = max((one.rates.steps for one in picture.rows), default=0.0)
        collectives = max((one.rates.collectives for one in picture.rows), default=0.0)
        parts = [at, f"{pace:.1f} steps/s", f"{collectives:.1f} collectives/s", *crowds(picture)]
        parts += [f"the others lose {one.late:.0%} to rank {one.row.rank}" for one in picture.rows if one.late >= LATE]
        self.say("; ".join(parts))
