"""The label of a rank's run while ranks may still be agreeing on its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist.tape.layout import RunIdState
from otel_torchdist.tape.records import TapeStatus
from otel_torchdist.telemetry.ids import run_label

HOLD_BACK_S: Final = 5.0


class RunLabel:
    """Decides when a rank is shown, and under which run.

    A settled run id is shown at once, and so is whatever id there is when the rank ends. An unsettled one is held
    back for `HOLD_BACK_S`. After that the rank is shown under what it has ('' when it has none), because nothing is
    settled while rank 0 hangs. Should the settled id then be another one, those series end and the rank goes on under
    the settled id.

    Attributes:
        shown: The label; None while the rank is held back.
        settled: Whether it can no longer change.
    """

    def __init__(self, label_of: Callable[[int], str] = run_label) -> None:
        """Hold back; `label_of` gives the label of a run's id."""
        self._label_of = label_of
        self.shown: str | None = None
        self.settled = False
        self._unsettled_since_ns: int | None = None

    def update(self, status: TapeStatus, is_running: bool, now_ns: int) -> None:
        """Look at the tape's live words again.

        Args:
            status: The live words.
            is_running: Whether the rank has not ended.
            now_ns: Monotonic clock.
        """
        if self.settled:
            return
        if status.run_id_state in (RunIdState.AGREED, RunIdState.UNAGREED) or not is_running:
            self.shown = self._label_of(status.run_id)
            self.settled = True
            return
        if self._unsettled_since_ns is None:
            self._unsettled_since_ns = now_ns
        if now_ns - self._unsettled_since_ns >= HOLD_BACK_S * 1e9:
            self.shown = self._label_of(status.run_id)

    def settle(self) -> None:
        """The rank's tape will not be read again: what it has is final."""
        self.shown = self.shown or ""
        self.settled = True
