"""Figures of a rank's steps: counters in words of the tape's header, next to the live words.

They are counters instead of records for two reasons: recording a data wait of a few microseconds would take as long as
the wait, and a slow reader misses no counts. Like other counters they have no checksums: damage means a wrong metric.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_torchdist.tape.layout import clipped

if TYPE_CHECKING:
    from otel_torchdist.tape.memory import TapeMemory

_MASK_64: Final = (1 << 64) - 1
_FLOAT: Final = struct.Struct("=d")
_WORD: Final = struct.Struct("=Q")


class FigureWord(enum.IntEnum):
    """Index of each figure, counted in 64-bit words from the start of the file."""

    DATA_WAIT_NS = 160
    BATCHES = 161
    BACKWARD_NS = 162
    BACKWARD_PASSES = 163
    OPTIMIZER_NS = 164
    OPTIMIZER_STEPS = 165
    SAMPLES = 166
    TOKENS = 167
    FLOPS = 168
    """The bits of a float64: an integer would overflow within a day."""
    SYNC_NS = 169
    SYNC_OVERLAP_NS = 170
    SYNCS_TIMED = 171


_FIRST: Final = min(FigureWord)
_WORDS: Final = struct.Struct(f"={len(FigureWord)}Q")


class StepFigures(NamedTuple):
    """The counters of a rank's steps at one moment.

    Attributes:
        data_wait_ns: Time that its training thread waited for data.
        batches: Number of batches that it waited for.
        backward_ns: Time in backward passes of autograd; on a device, until they are enqueued.
        backward_passes: Number of backward passes.
        optimizer_ns: Time in optimizer steps outside of backward passes; on a device, until they are enqueued.
        optimizer_steps: Number of optimizer steps.
        samples: Sum of the samples passed to `mark_step`.
        tokens: Sum of the tokens passed to `mark_step`.
        flops: Sum of the floating-point operations passed to `mark_step`.
        sync_ns: Time of DDP's gradient reduction in the last step that DDP timed.
        sync_overlap_ns: Part of `sync_ns` hidden behind the computation of gradients.
        syncs_timed: Number of steps that DDP timed; if 0, the two times above are meaningless.
    """

    data_wait_ns: int = 0
    batches: int = 0
    backward_ns: int = 0
    backward_passes: int = 0
    optimizer_ns: int = 0
    optimizer_steps: int = 0
    samples: int = 0
    tokens: int = 0
    flops: float = 0.0
    sync_ns: int = 0
    sync_overlap_ns: int = 0
    syncs_timed: int = 0


NO_FIGURES: Final = StepFigures()


class FigureWords:
    """Writes the figures of a tape. Updates are not atomic: concurrent threads may lose updates of one figure."""

    _words: memoryview

    def add_to(self, word: FigureWord, amount: int) -> None:
        """Add to a counter."""
        self._words[word] = (self._words[word] + amount) & _MASK_64

    def add_time(self, word: FigureWord, nanoseconds: int) -> None:
        """Add to a time, and add 1 to its counter, which is the next word."""
        words = self._words
        words[word] = (words[word] + nanoseconds) & _MASK_64
        words[word + 1] = (words[word + 1] + 1) & _MASK_64

    def add_flops(self, amount: float) -> None:
        """Add to the floating-point operations."""
        before = _FLOAT.unpack(_WORD.pack(self._words[FigureWord.FLOPS]))[0]
        self._words[FigureWord.FLOPS] = _WORD.unpack(_FLOAT.pack(before + amount))[0]

    def set_sync(self, sync_ns: int, overlap_ns: int) -> None:
        """Publish DDP's times of a step."""
        self._words[FigureWord.SYNC_NS] = sync_ns
        self._words[FigureWord.SYNC_OVERLAP_NS] = overlap_ns
        self.add_to(FigureWord.SYNCS_TIMED, 1)

    def figures_so_far(self, word: FigureWord) -> tuple[int, int]:
        """Return a time and its counter, for `replace_figures`."""
        return self._words[word], self._words[word + 1]

    def replace_figures(self, word: FigureWord, nanoseconds: int, count: int) -> None:
        """Set a time and its counter."""
        self._words[word] = nanoseconds & _MASK_64
        self._words[word + 1] = count & _MASK_64


def read_figures(memory: TapeMemory) -> StepFigures:
    """Read the figures of a tape."""
    words = _WORDS.unpack(memory.read(_FIRST << 3, _WORDS.size))
    values = [int(word) for word in words]
    flops = _FLOAT.unpack(_WORD.pack(values[FigureWord.FLOPS - _FIRST]))[0]
    counters = {
        word.name.lower(): clipped(values[word - _FIRST]) for word in FigureWord if word is not FigureWord.FLOPS
    }
    return StepFigures(**counters, flops=flops if flops == flops and 0 <= flops < float("inf") else 0.0)
