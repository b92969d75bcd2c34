"""The current label of each thread's calls (layer, microbatch, …), in a word that both kernels read.

The word is written to the record of each call, not to its plan, so the layers of a model and the microbatches of a
pipeline share their plans. With the native library, the word is in thread-local memory of the library: setting it takes
a store, not a call.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, MutableSequence
from typing import TYPE_CHECKING, Any

from otel_torchdist import guard
from otel_torchdist.capture.core.part import RecordingPart
from otel_torchdist.model.names import pack_label

if TYPE_CHECKING:
    from otel_torchdist.model.names import LabelName
    from otel_torchdist.native.library import Library


class LabeledThread(threading.local):
    """Label of the calling thread.

    Attributes:
        word: A sequence of one number: the label as packed by `pack_label`, or 0.
    """

    def __init__(self, new_word: Callable[[], MutableSequence[int]]) -> None:
        self.word = new_word()


class ThreadLabels(RecordingPart):
    """The labels of all threads."""

    def __init__(self, library: Library | None) -> None:
        """Initialize without labels. `library` is the native library, if it is in use."""
        super().__init__()
        self._library = library
        self.thread = LabeledThread(self._new_word)

    def _new_word(self) -> MutableSequence[int]:
        if self._library is None:
            return [0]
        number: Any = ctypes.c_uint32.from_address(self._library.label_word())
        word: Any = memoryview(number).cast("B").cast("I")
        return word

    def word_of(self, name: LabelName | None, piece: int = 0) -> int:
        """Return the word of a label; 0 without a label or tape, or if its name does not fit.

        `piece` is the number of the microbatch or bucket, from 1; 0 for none.
        """
        recorder = self.recorder
        identity = recorder.intern_label(name) if recorder is not None and name is not None else 0
        return pack_label(identity, piece) if identity else 0

    def label_calls_of(self, original: Callable[..., Any], word_of: Callable[..., int]) -> Callable[..., Any]:
        """Wrap a function: label the calls that it makes.

        Args:
            original: The wrapped function.
            word_of: Returns the word of the label, given the function's arguments; 0 to keep the current label.
        """
        thread = self.thread

        @functools.wraps(original)
        def labeled(*args: Any, **kwargs: Any) -> Any:
            word = thread.word
            before = word[0]
            try:  # a signal handler may raise at any call in here
                try:
                    word[0] = word_of(*args, **kwargs) or before
                except Exception as error:
                    guard.report("label", error)
                return original(*args, **kwargs)
            finally:
                word[0] = before

        return labeled
