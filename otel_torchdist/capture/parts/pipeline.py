"""Labels the messages of pipelines with their stage, direction and microbatch.

A stage creates its messages (`P2POp`), and a schedule issues them in batches, which may mix stages, directions and
microbatches. So labels are stored by message object, and a batch sets each label when its message is issued. The
objects are not changed: torch compares the functions in them by identity.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, MutableSequence
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.torch_api import LIST
from otel_torchdist.capture.upstream import training
from otel_torchdist.model.names import LabelKind, LabelName

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.thread_labels import ThreadLabels
    from otel_torchdist.capture.core.torch_api import Patches, PatchTargets

STAGES: Final = training.STAGE_FORWARD_SEND.module
SCHEDULES: Final = training.BATCH_P2P.module
_MAKERS: Final = {
    training.STAGE_FORWARD_SEND: "fwd",
    training.STAGE_FORWARD_RECV: "fwd",
    training.STAGE_BACKWARD_SEND: "bwd",
    training.STAGE_BACKWARD_RECV: "bwd",
}
"""Methods of a stage that create the messages of a microbatch, with their direction."""


_NO_LABEL: Final[tuple[LabelName | None, int]] = (None, 0)


class _Batch(list[Any]):
    """A list of messages that sets the label of each message when it is iterated."""

    def __init__(self, messages: list[Any], words: list[int], word: MutableSequence[int]) -> None:
        super().__init__(messages)
        self._words = words
        self._word = word

    def __iter__(self) -> Iterator[Any]:
        for message, label in zip(super().__iter__(), self._words, strict=True):
            self._word[0] = label
            yield message


class Stages:
    """Labels for the messages of pipelines."""

    def __init__(self, labels: ThreadLabels) -> None:
        self._labels = labels
        self._labels_by_message: weakref.WeakKeyDictionary[Any, tuple[LabelName, int]] = weakref.WeakKeyDictionary()

    def targets(self, module: ModuleType) -> PatchTargets:
        """Return the attributes to patch in the module of stages."""
        return [(symbol.holder, symbol) for symbol in _MAKERS]

    def hook(self, patches: Patches, module: ModuleType) -> None:
        """Patch the targets."""
        for owner, name in self.targets(module):
            patches.replace(owner, name, functools.partial(self._wrap_maker, direction=_MAKERS[name]))

    def schedule_targets(self, module: ModuleType) -> PatchTargets:
        """Return the attributes to patch in the module of schedules."""
        return [(module, training.BATCH_P2P)]

    def hook_schedules(self, patches: Patches, module: ModuleType) -> None:
        """Patch the targets."""
        for owner, name in self.schedule_targets(module):
            patches.replace(owner, name, self._wrap_batch)

    def _wrap_maker(self, original: Callable[..., Any], direction: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(stage: Any, microbatch: int, *args: Any, **kwargs: Any) -> Any:
            messages = original(stage, microbatch, *args, **kwargs)
            try:
                if messages:
                    label = LabelName(LabelKind.PIPELINE, stage=int(stage.stage_index), direction=direction)
                    for message in messages:
                        self._labels_by_message[message] = label, microbatch + 1
            except Exception as error:
                guard.report("pipeline label", error)
            return messages

        return make

    def _wrap_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._labels.thread

        @functools.wraps(original)
        def batch_p2p(p2p_ops: Any, *args: Any, **kwargs: Any) -> Any:
            word = thread.word
            before = word[0]
            try:  # a signal handler may raise at any call in here
                return original(self._batch(p2p_ops, word), *args, **kwargs)
            finally:
                word[0] = before

        return batch_p2p

    def _batch(self, messages: Any, word: MutableSequence[int]) -> Any:
        """Return the messages, with labels if any of them has one."""
        try:
            if type(messages) is not LIST or not messages:
                return messages
            words = [self._labels.word_of(*self._labels_by_message.get(message, _NO_LABEL)) for message in messages]
            return _Batch(messages, words, word) if any(words) else messages
        except Exception as error:
            guard.report("pipeline label", error)
            return messages
