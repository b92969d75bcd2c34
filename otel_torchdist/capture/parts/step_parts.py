"""How long a training step waits for data and runs backward: counters in the tape, and spans of what takes long.

Both are intervals of the thread that trains. Of nested ones the outermost counts: a loader in a dataset, or the
backward pass in which checkpointed activations are computed again. What other threads wait for, such as those that
fetch data ahead, does not hold up a step.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import dataloader

from otel_torchdist import guard
from otel_torchdist.capture.core.intervals import RecordedInterval
from otel_torchdist.capture.core.part import RecordingPart
from otel_torchdist.capture.core.torch_api import backward_id, skip_in_dynamo
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.names import SPARE_OF_LABELS
from otel_torchdist.tape.figures import FigureWord
from otel_torchdist.tape.layout import prepare_activity

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches

SHORTEST_SPAN_NS: Final = 1_000_000
"""Shorter waits and passes are only counted."""
FETCHES: Final = "_next_data"
"""The method that waits for a batch; each kind of iterator has its own."""
MAX_IN_STEP: Final = 16
"""Records of each kind in a training step: pipelines run backward for each microbatch."""

_LOADER: Final = "_BaseDataLoaderIter"
"""The class of all iterators of loaders; private to torch."""

_logger = logging.getLogger("otel_torchdist")

_active: StepParts | None = None
"""The instance to which `data_wait` counts; a process has at most one capture."""


class DataWait:
    """A wait for data that is counted from `__enter__` to `__exit__`; may be entered again and again."""

    __slots__ = ("_before", "_begun_ns", "_recorder")

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._before = (0, 0)
        self._begun_ns = 0

    def __enter__(self) -> DataWait:
        """Begin."""
        parts = _active
        self._recorder = recorder = parts.recorder_here() if parts is not None else None
        if recorder is not None:
            self._before = recorder.tape.figures_so_far(FigureWord.DATA_WAIT_NS)
            self._begun_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, however the block ended; what it raised counts as time, and not as a batch."""
        recorder, parts = self._recorder, _active
        if recorder is not None and parts is not None:
            parts.waited(recorder, self._begun_ns, self._before, error is None)


def data_wait() -> DataWait:
    """Count a block as waiting for data.

    For iterators that are not PyTorch's ``DataLoader``::

        with data_wait():
            batch = next(my_batches)

    Does nothing while instrumentation is off, and on threads other than the one that trains.
    """
    return DataWait()


class StepParts(RecordingPart):
    """Counts and records data waits and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = 0
        self._step = -1
        self._recorded = {ActivityKind.DATA_WAIT: 0, ActivityKind.BACKWARD: 0}

    def hook(self, patches: Patches) -> None:
        """Follow every loader and backward pass of the process, and handle `data_wait`."""
        global _active
        _active = self
        for ours in (
            StepParts._runs,
            StepParts._ran,
            StepParts.waited,
            DataWait.__enter__,
            DataWait.__exit__,
            data_wait,
        ):
            skip_in_dynamo(ours.__code__)
        self._follow_loaders(patches)
        patches.replace(torch.autograd, "backward", self._make_backward, has_rule=True)

    def unhook(self) -> None:
        """Stop handling `data_wait`."""
        global _active
        _active = None
        base: Any = getattr(dataloader, _LOADER, None)
        if base is not None and "__init_subclass__" in vars(base):
            del base.__init_subclass__

    def begins(self, recorder: Recorder) -> None:
        """Record to a new tape; the calling thread trains, until another ends a step."""
        super().begins(recorder)
        self.trains_here()

    def trains_here(self) -> None:
        """Note that the calling thread is the one that trains."""
        self._thread = threading.get_ident()

    def recorder_here(self) -> Recorder | None:
        """Return the recorder, on the thread that trains; None on others."""
        return self.recorder if threading.get_ident() == self._thread else None

    # --- data waits --------------------------------------------------------------------------------------------

    def _follow_loaders(self, patches: Patches) -> None:
        """Follow the iterators of all loaders, those too whose classes are made later."""
        base: Any = getattr(dataloader, _LOADER, None)
        if not hasattr(base, FETCHES):
            missing = _LOADER if base is None else f"{_LOADER}.{FETCHES}"
            _logger.warning("this torch has no %s: waits for data are not known, except those in data_wait()", missing)
            return
        # Not `__next__`, which warns at the line of its caller.
        for loader in _with_subclasses(base):
            self._follow(patches, loader)
        base.__init_subclass__ = classmethod(_subclass_hook(base, functools.partial(self._follow, patches)))

    def _follow(self, patches: Patches, loader: type) -> None:
        """Follow the iterators of a class that fetches batches in its own way."""
        if FETCHES in loader.__dict__ and loader.__name__ != _LOADER:
            patches.replace(loader, FETCHES, self._make_next, is_traced=True)

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
        """Count a wait that is over. Waits inside it were counted too: they are replaced, not added to.

        Args:
            recorder: The recorder at its beginning.
            begun_ns: When it began.
            before: The counters at that time.
            has_batch: Whether it ended with a batch.
            iterator: The loader's iterator, if it is one.
        """
        try:
            ended_ns = time.monotonic_ns()
            lasted_ns = ended_ns - begun_ns
            recorder.tape.replace_figures(FigureWord.DATA_WAIT_NS, before[0] + lasted_ns, before[1] + has_batch)
            if lasted_ns >= SHORTEST_SPAN_NS and self._has_room(recorder, ActivityKind.DATA_WAIT):
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
            begun_ns = self._runs(recorder)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._ran(recorder, begun_ns, error)
                raise
            self._ran(recorder, begun_ns, None)
            return result

        return backward

    @staticmethod
    def _runs(recorder: Recorder) -> int:
        """Publish that a backward pass begins: what waits in it for operations, in C++, is not seen otherwise."""
        begun_ns = time.monotonic_ns()
        try:
            recorder.tape.begin_backward(threading.get_native_id(), begun_ns)
        except Exception as error:
            guard.report("backward pass", error)
        return begun_ns

    def _ran(self, recorder: Recorder, begun_ns: int, failure: BaseException | None) -> None:
        try:
            recorder.tape.end_backward(threading.get_native_id())
            ended_ns = time.monotonic_ns()
            recorder.tape.add_time(FigureWord.BACKWARD_NS, ended_ns - begun_ns)
            is_long = ended_ns - begun_ns >= SHORTEST_SPAN_NS or failure is not None
            if is_long and self._has_room(recorder, ActivityKind.BACKWARD):
                self._record(recorder, ActivityKind.BACKWARD, "", begun_ns, ended_ns, failure)
        except Exception as error:
            guard.report("backward pass", error)

    # --- records -----------------------------------------------------------------------------------------------

    def _has_room(self, recorder: Recorder, kind: ActivityKind) -> bool:
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
        """Record an interval that is over: only then is it known to be long enough."""
        tape = recorder.tape
        name = tape.names.find_room(type(failure).__qualname__, SPARE_OF_LABELS) if failure is not None else 0
        label = tape.names.find_room(detail, SPARE_OF_LABELS) if detail else 0
        tail = prepare_activity(kind, label, threading.get_native_id())
        interval = RecordedInterval(tape, begun_ns)
        try:
            interval.begin(recorder.step, 0, tail)
        finally:
            tape.complete(interval.number, begun_ns, ended_ns, How.CALL if failure is None else How.FAILED, name)


def _with_subclasses(of: type) -> Iterator[type]:
    yield of
    for one in of.__subclasses__():
        yield from _with_subclasses(one)


def _subclass_hook(base: type, follow: Callable[[type], None]) -> Callable[..., None]:
    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        with guard.guarded("data loader"):
            follow(cls)

    return __init_subclass__


def _dataset_of(iterator: Any) -> str:
    """Return the class of the dataset that a loader reads; '' if it is not known."""
    dataset = getattr(iterator, "_dataset", None)
    return type(dataset).__name__ if dataset is not None else ""
