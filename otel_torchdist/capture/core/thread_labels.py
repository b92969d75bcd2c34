"""What the calls of each thread are for at this moment, in a word that both kernels read.

The word is put into the record of each call, not into its plan: the layers of a model then share their plans, and so
do the microbatches of a pipeline. For the native library it lies in the library's memory of the thread, so setting it
takes a store and no call.
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


class LabelledThread(threading.local):
    """State of the calling thread.

    Attributes:
        word: Holds one number: the label of its calls as by `pack_label`, 0 for none.
    """

    def __init__(self, new_word: Callable[[], MutableSequence[int]]) -> None:
        self.word = new_word()


class ThreadLabels(RecordingPart):
    """Labels the calls that a function makes.

    Attributes:
        thread: State of the calling thread.
    """

    def __init__(self, library: Library | None) -> None:
        """Label nothing yet; the library is that which records natively, if any."""
        super().__init__()
        self._library = library
        self.thread = LabelledThread(self._new_word)

    def _new_word(self) -> MutableSequence[int]:
        if self._library is None:
            return [0]
        number: Any = ctypes.c_uint32.from_address(self._library.label_word())
        word: Any = memoryview(number).cast("B").cast("I")
        return word

    def word_of(self, name: LabelName | None, piece: int = 0) -> int:
        """The word of a label; 0 if there is none, or no tape, or no room for its name."""
        recorder = self.recorder
        identity = recorder.label(name) if recorder is not None and name is not None else 0
        return pack_label(identity, piece) if identity else 0

    def around(self, original: Callable[..., Any], word_of: Callable[..., int]) -> Callable[..., Any]:
        """A function that labels the calls made in another one.

        Args:
            original: That function.
            word_of: Receives its arguments and returns the word of the label; 0 to leave it as it is.
        """
        thread = self.thread

        @functools.wraps(original)
        def labelled(*args: Any, **kwargs: Any) -> Any:
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

        return labelled
