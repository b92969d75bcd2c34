"""Records data waits and backward passes of training steps: totals on the tape, and spans for long ones.

Both are intervals of the training thread. Nested intervals count once: a loader in a dataset, or the backward pass in
which checkpointed activations are recomputed. Waits of other threads, such as prefetching, do not delay a step.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_torchdist import guard
from otel_torchdist.capture.core.intervals import RecordedInterval
from otel_torchdist.capture.core.part import RecordingPart
from otel_torchdist.capture.core.torch_api import backward_id, skip_in_dynamo
from otel_torchdist.capture.upstream import training
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.names import SPARE_OF_LABELS
from otel_torchdist.model.recording_level import RecordingLevel
from otel_torchdist.tape.figures import FigureWord
from otel_torchdist.tape.layout import prepare_activity

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches

MIN_SPAN_NS: Final = 1_000_000
"""Minimum length of a recorded interval. Shorter intervals only add to the totals."""
MAX_IN_STEP: Final = 16
"""Maximum number of records of each kind per step: pipelines run backward for each microbatch."""


_active: StepParts | None = None
"""The instance that `data_wait` reports to. A process has at most one capture."""


class DataWait:
    """A context manager that counts a data wait. Reusable."""

    __slots__ = ("_before", "_begun_ns", "_recorder")

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._before = (0, 0)
        self._begun_ns = 0

    def __enter__(self) -> DataWait:
        """Begin the wait."""
        parts = _active
        self._recorder = recorder = parts.training_recorder() if parts is not None else None
        if recorder is not None:
            self._before = recorder.tape.figures_so_far(FigureWord.DATA_WAIT_NS)
            self._begun_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the wait. After an exception, its time counts, but no batch."""
        recorder, parts = self._recorder, _active
        if recorder is not None and parts is not None:
            parts.waited(recorder, self._begun_ns, self._before, error is None)


def data_wait() -> DataWait:
    """Count a block as a wait for data.

    For iterators other than PyTorch's ``DataLoader``::

        with data_wait():
            batch = next(my_batches)

    Does nothing while instrumentation is off, and on threads other than the training thread.
    """
    return DataWait()


class StepParts(RecordingPart):
    """The session part that records data waits and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = 0
        self._step = -1
        self._is_reduced = False
        self._recorded = {ActivityKind.DATA_WAIT: 0, ActivityKind.BACKWARD: 0}

    def hook(self, patches: Patches) -> None:
        """Patch all loaders and `backward`, and handle `data_wait`."""
        global _active
        _active = self
        for function in (
            StepParts._backward_begins,
            StepParts._backward_ended,
            StepParts.waited,
            DataWait.__enter__,
            DataWait.__exit__,
            data_wait,
        ):
            skip_in_dynamo(function.__code__)
        self._follow_loaders(patches)
        patches.replace(torch.autograd, "backward", self._make_backward, has_rule=True)

    def unhook(self) -> None:
        """Stop handling `data_wait`."""
        global _active
        _active = None
        base: Any = training.NEXT_DATA.holder
        if base is not None and "__init_subclass__" in vars(base):
            del base.__init_subclass__

    def begins(self, recorder: Recorder) -> None:
        """Start recording to a new tape. The calling thread is the training thread until another ends a step."""
        super().begins(recorder)
        self.mark_training_thread()

    def reduce(self, level: RecordingLevel) -> None:
        """Record no intervals from `NO_INTERVALS` on. Their times are still counted."""
        self._is_reduced = level >= RecordingLevel.NO_INTERVALS

    def mark_training_thread(self) -> None:
        """Remember the calling thread as the training thread."""
        self._thread = threading.get_ident()

    def training_recorder(self) -> Recorder | None:
        """Return the recorder on the training thread, None on other threads."""
        return self.recorder if threading.get_ident() == self._thread else None

    # --- data waits --------------------------------------------------------------------------------------------

    def _follow_loaders(self, patches: Patches) -> None:
        """Patch all iterator classes of loaders, including classes that are defined later."""
        base: Any = training.LOADER_ITERATOR.find()
        if base is None or not training.NEXT_DATA.is_in(base):
            return
        # Not `__next__`, whose warnings show the line of its caller.
        for loader in _with_subclasses(base):
            self._follow(patches, loader)
        base.__init_subclass__ = classmethod(_subclass_hook(base, functools.partial(self._follow, patches)))

    def _follow(self, patches: Patches, loader: type) -> None:
        """Patch an iterator class, if it defines the method."""
        if training.NEXT_DATA.name in loader.__dict__ and loader is not training.NEXT_DATA.holder:
            patches.replace(loader, training.NEXT_DATA, self._make_next, is_traced=True)

    def _make_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _next_data(iterator: Any) -> Any:
            recorder = self.recorder
            if recorder is None or threading.get_ident() != self._thread:
                return original(iterator)
            tape = recorder.tape
            before = tape.figures_so_far(FigureWord.DATA_WAIT_NS)
            begun_ns = time.monotonic_ns()
            try:
                batch = original(iterator)
            except BaseException:
                self.waited(recorder, begun_ns, before, False, iterator)
                raise
            self.waited(recorder, begun_ns, before, True, iterator)
            return batch

        return _next_data

    def waited(
        self, recorder: Recorder, begun_ns: int, before: tuple[int, int], has_batch: bool, iterator: Any = None
    ) -> None:
        """Count a completed wait. It replaces the counts of nested waits.

        Args:
            recorder: The recorder when the wait began.
            begun_ns: Monotonic time at which the wait began.
            before: The counters at that time.
            has_batch: Whether the wait ended with a batch.
            iterator: The loader's iterator, if any.
        """
        try:
            ended_ns = time.monotonic_ns()
            duration_ns = ended_ns - begun_ns
            recorder.tape.replace_figures(FigureWord.DATA_WAIT_NS, before[0] + duration_ns, before[1] + has_batch)
            if duration_ns >= MIN_SPAN_NS and self._has_room(recorder, ActivityKind.DATA_WAIT):
                self._record(recorder, ActivityKind.DATA_WAIT, _dataset_of(iterator), begun_ns, ended_ns)
        except Exception as error:
            guard.report("data wait", error)

    # --- backward passes ---------------------------------------------------------------------------------------

    def _make_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            if recorder is None or backward_id() != -1:
                return original(*args, **kwargs)
            begun_ns = self._backward_begins(recorder)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._backward_ended(recorder, begun_ns, error)
                raise
            self._backward_ended(recorder, begun_ns, None)
            return result

        return backward

    @staticmethod
    def _backward_begins(recorder: Recorder) -> int:
        """Publish that a backward pass begins. Waits for operations in its C++ code are invisible otherwise."""
        begun_ns = time.monotonic_ns()
        try:
            recorder.tape.begin_backward(threading.get_native_id(), begun_ns)
        except Exception as error:
            guard.report("backward pass", error)
        return begun_ns

    def _backward_ended(self, recorder: Recorder, begun_ns: int, failure: BaseException | None) -> None:
        try:
            recorder.tape.end_backward(threading.get_native_id())
            ended_ns = time.monotonic_ns()
            recorder.tape.add_time(FigureWord.BACKWARD_NS, ended_ns - begun_ns)
            is_long = ended_ns - begun_ns >= MIN_SPAN_NS or failure is not None
            if is_long and self._has_room(recorder, ActivityKind.BACKWARD):
                self._record(recorder, ActivityKind.BACKWARD, "", begun_ns, ended_ns, failure)
        except Exception as error:
            guard.report("backward pass", error)

    # --- records -----------------------------------------------------------------------------------------------

    def _has_room(self, recorder: Recorder, kind: ActivityKind) -> bool:
        if self._is_reduced:
            return False
        if recorder.step != self._step:
            self._step = recorder.step
            self._recorded = dict.fromkeys(self._recorded, 0)
        self._recorded[kind] += 1
        return self._recorded[kind] <= MAX_IN_STEP

    def _record(
        self,
        recorder: Recorder,
        kind: ActivityKind,
        detail: str,
        begun_ns: int,
        ended_ns: int,
        failure: BaseException | None = None,
    ) -> None:
        """Record a completed interval."""
        tape = recorder.tape
        name = tape.names.intern_optional(type(failure).__qualname__, SPARE_OF_LABELS) if failure is not None else 0
        label = tape.names.intern_optional(detail, SPARE_OF_LABELS) if detail else 0
        tail = prepare_activity(kind, label, threading.get_native_id())
        interval = RecordedInterval(tape, begun_ns)
        try:
            interval.begin(recorder.step, 0, tail)
        finally:
            tape.complete(interval.number, begun_ns, ended_ns, How.CALL if failure is None else How.FAILED, name)


def _with_subclasses(base: type) -> Iterator[type]:
    yield base
    for subclass in base.__subclasses__():
        yield from _with_subclasses(subclass)


def _subclass_hook(base: type, follow: Callable[[type], None]) -> Callable[..., None]:
    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        with guard.guarded("data loader"):
            follow(cls)

    return __init_subclass__


def _dataset_of(iterator: Any) -> str:
    """Return the class name of a loader's dataset; '' if unknown."""
    dataset = getattr(iterator, training.LOADER_DATASET.name, None)
    return type(dataset).__name__ if dataset is not None else ""
