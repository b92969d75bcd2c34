"""Records saves and loads of `torch.distributed.checkpoint`, with their stages.

torch logs the start and end of each save, load and stage to a separate logger, for listeners. If a stage raises, torch
logs only the exception of the whole checkpoint. Bytes, files and exceptions of stages are recorded in the functions
that its collectives call on each rank.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.torch_api import CHECKPOINT_LOGGER, DICT, LIST, TUPLE
from otel_torchdist.capture.parts.checkpoints.open_activities import (
    Failure,
    OpenActivities,
    message_of,
    storage_of,
    text_of,
)
from otel_torchdist.capture.upstream import training
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.tape.layout import ActivityWord

if TYPE_CHECKING:
    from otel_torchdist.capture.core.torch_api import Patches

MAX_ITEMS: Final = 100_000
"""Maximum number of plan entries that are counted."""
_STORAGE: Final = ("storage_writer", "storage_reader")


@dataclass(frozen=True, slots=True)
class Amount:
    """The amount of data of a plan or result of `torch.distributed.checkpoint`.

    The program may define planners, writers and readers. Amounts of objects unlike torch's are unknown.

    Attributes:
        message_bytes: Number of bytes; 0 if unknown.
        files: Number of files; 0 if unknown.
    """

    message_bytes: int = 0
    files: int = 0


NOTHING: Final = Amount()


def storage_in(function: Callable[..., Any]) -> Any:
    """Return the writer or reader in the closure of a stage's function, or None."""
    inner: Any = getattr(function, "__wrapped__", function)
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None)
    if code is None or cells is None:
        return None
    for name, cell in zip(code.co_freevars, cells, strict=False):
        if name in _STORAGE:
            try:
                return cell.cell_contents
            except ValueError:  # empty
                return None
    return None


def name_of_storage(storage: Any, path: str) -> str:
    """Return the display name of a writer or reader; '' for None."""
    return "" if storage is None else storage_of(text_of(type(storage).__name__), path)


@guard.calls_plug_ins
def planned_amount(plan: Any, storage: Any) -> Amount:
    """Return the amount that a rank's plan writes, or reads from this storage."""
    try:
        items: Any = plan.items[:MAX_ITEMS]
        stored: Any = getattr(storage, "storage_data", None)
        if stored and items and hasattr(items[0], "storage_index"):
            entries = {item.storage_index: stored[item.storage_index] for item in items}.values()
            return Amount(sum(int(entry.length) for entry in entries), len({entry.relative_path for entry in entries}))
        return Amount(sum(_bytes_of(item) for item in items))
    except Exception as error:
        guard.pass_on(error)
        return NOTHING


def _bytes_of(item: Any) -> int:
    data: Any = getattr(item, "tensor_data", None)
    return 0 if data is None else math.prod(data.chunk.sizes) * int(data.properties.dtype.itemsize)


@guard.calls_plug_ins
def written_amount(results: Any) -> Amount:
    """Return the amount in the results of `write_data`."""
    try:
        if type(results) is not LIST or not results or not hasattr(results[0], "size_in_bytes"):
            return NOTHING
        files = {text_of(getattr(result.storage_data, "relative_path", None)) for result in results} - {""}
        return Amount(sum(int(result.size_in_bytes) for result in results), len(files))
    except Exception as error:
        guard.pass_on(error)
        return NOTHING


_UTILS: Final = training.DIST_WRAPPER.module
_STAGES: Final = (training.WRAPPED_SCATTER, training.WRAPPED_REDUCE, training.WRAPPED_GATHER)
_OPERATIONS: Final = {
    "save": ActivityKind.CHECKPOINT_SAVE,
    "load": ActivityKind.CHECKPOINT_LOAD,
    "async_save": ActivityKind.CHECKPOINT_ASYNC_SAVE,
}
_WRITES: Final = "write_data"
_READS: Final = "read_data"
_MOVES_DATA: Final = (_WRITES, _READS)
_CONTEXT: Final = "checkpoint"

_logger = logging.getLogger("otel_torchdist")


class DistributedCheckpoints(logging.Handler):
    """Log handler that records torch's checkpoints."""

    def __init__(self, activities: OpenActivities, patches: Patches) -> None:
        """Initialize without hooks."""
        super().__init__(logging.DEBUG)
        self._activities = activities
        self._patches = patches
        self._watch_lock = threading.Lock()
        self._watches_stages = False
        self._has_warned = False

    def hook(self) -> None:
        """Start listening."""
        logging.getLogger(CHECKPOINT_LOGGER).addHandler(self)
        self.check()

    def unhook(self) -> None:
        """Stop listening."""
        for logger in (logging.getLogger(CHECKPOINT_LOGGER), _logger_of_torch()):
            if logger is not None:
                logger.removeHandler(self)

    def check(self) -> None:
        """Listen to the package's logger, once it is imported. Its name may vary. Called once a second."""
        if hasattr(
            sys.modules.get(_UTILS), training.DIST_WRAPPER.name
        ):  # else another thread may be about to import it
            self._watch_stages()
        logger = _logger_of_torch()
        if logger is not None and self not in logger.handlers:
            logger.addHandler(self)

    def _warn_if_silent(self) -> None:
        """Warn once if the program saves or loads and torch logs nothing."""
        logger = _logger_of_torch()
        is_heard = logger is not None and logger.isEnabledFor(logging.DEBUG)
        if self._has_warned or is_heard or self._activities.recorder is None:
            return
        self._has_warned = True
        reason = "this torch logs none" if logger is None else f"the logger {logger.name} is disabled"
        _logger.warning("checkpoints are not recorded: %s (`logging.disable` and `dictConfig` do that)", reason)

    def emit(self, record: logging.LogRecord) -> None:
        """Record a message of torch, on the thread of the activity."""
        message: Any = record.msg
        if self._activities.recorder is None or type(message) is not DICT:
            return
        try:
            if not self._watches_stages:  # the package is imported by the first message
                self._watch_stages()
            self._handle(message)
        except Exception as error:
            guard.report(_CONTEXT, error)

    def _handle(self, message: dict[str, Any]) -> None:
        event, key, name = message.get("event"), message.get("uuid"), message.get("func_name")
        if type(name) is not str or type(key) is not str or "." in name:  # a message on a single entry of a state dict
            return
        if event == "start":
            self._begin(name, key, message)
        elif event == "end":
            self._activities.end(key, How.CALL)
        elif event == "exception":
            self._activities.end(key, *_ending(sys.exc_info()[1]))

    def _begin(self, name: str, key: str, message: dict[str, Any]) -> None:
        kind = _OPERATIONS.get(name)
        if kind is not None:
            self._activities.begin(kind, text_of(message.get("checkpoint_id")), key)
            return
        current = self._activities.current
        operation = current.operation if current is not None else None
        expected = operation.expected_bytes if operation is not None and name in _MOVES_DATA else 0
        self._activities.begin(ActivityKind.CHECKPOINT_STAGE, text_of(name), key, expected)

    def _watch_stages(self) -> None:
        if not self._watch_lock.acquire(blocking=False):  # in a forked child, it may stay locked
            return
        try:
            if not self._watches_stages:
                self._watches_stages = True
                self._replace_collectives()
        finally:
            self._watch_lock.release()

    def _replace_collectives(self) -> None:
        owner = training.DIST_WRAPPER.find()
        for symbol in _STAGES if owner is not None else ():
            self._patches.replace(owner, symbol, self._make_collective)

    def _make_collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        activities = self._activities

        def collective(wrapper: Any, step: Any, map_fun: Any, *args: Any, **kwargs: Any) -> Any:
            current = activities.current
            if current is None or not current.open or not callable(map_fun):
                with guard.guarded(_CONTEXT):
                    self._warn_if_silent()
                return original(wrapper, step, map_fun, *args, **kwargs)
            key = object()
            functions = _CollectiveFunctions(activities, map_fun)
            with guard.guarded(_CONTEXT):
                activities.begin(ActivityKind.CHECKPOINT_STAGE, text_of(step), key)
                functions.name_storage()
            if args and callable(args[0]):
                args = (functions.wrap(args[0]), *args[1:])
            elif callable(kwargs.get("reduce_fun")):
                kwargs["reduce_fun"] = functions.wrap(kwargs["reduce_fun"])
            try:
                result = original(wrapper, step, functions.wrap(map_fun), *args, **kwargs)
            except BaseException as error:
                with guard.guarded(_CONTEXT):
                    activities.end(key, *_ending(error))
                raise
            with guard.guarded(_CONTEXT):
                functions.expect(result)
            with guard.guarded(_CONTEXT):
                activities.end(key, How.CALL)
            return result

        return collective


class _CollectiveFunctions:
    """The functions that a collective of a checkpoint calls on this rank."""

    def __init__(self, activities: OpenActivities, map_fun: Callable[..., Any]) -> None:
        self._activities = activities
        self._storage = storage_in(map_fun)

    def name_storage(self) -> None:
        """Record the storage of the checkpoint, if known."""
        current = self._activities.current
        operation = current.operation if current is not None else None
        if operation is None or self._storage is None:
            return
        path = text_of(getattr(self._storage, "path", None))
        name = name_of_storage(self._storage, path)
        operation.note(ActivityWord.STORAGE, self._activities.texts.id_of(operation.tape, name))

    def expect(self, plan: Any) -> None:
        """Remember the amount to write or read, if the result is a plan."""
        current = self._activities.current
        operation = current.operation if current is not None else None
        if operation is None or not hasattr(plan, "items") or isinstance(plan, dict):
            return
        amount = planned_amount(plan, self._storage)
        operation.expected_bytes, operation.expected_files = amount.message_bytes, amount.files

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function. The end of the stage inside is recorded once the result is known."""
        activities = self._activities

        def wrapped(*args: Any) -> Any:
            current = activities.current
            if current is None:
                return function(*args)
            depth, deferring = len(current.open), current.deferring
            current.deferring = depth
            try:
                result = function(*args)
            except BaseException as error:
                with guard.guarded(_CONTEXT):
                    activities.fail_innermost(depth, failure_of(error))
                raise
            finally:
                current.deferring = deferring
            with guard.guarded(_CONTEXT):
                self._count(result)
            return result

        return wrapped

    def _count(self, result: Any) -> None:
        current = self._activities.current
        if current is None:
            return
        ended, current.deferred = current.deferred, None
        if ended is None:
            return
        operation, amount = current.operation, written_amount(result)
        if result is None and operation is not None and operation.kind is ActivityKind.CHECKPOINT_LOAD:  # `read_data`
            amount = Amount(operation.expected_bytes, operation.expected_files)
        ended.add_amount(amount.message_bytes, amount.files)
        if operation is not None:
            operation.add_amount(amount.message_bytes, amount.files)
        self._activities.complete(ended, How.CALL)


def _logger_of_torch() -> logging.Logger | None:
    """Return the package's logger, or None if it is not imported or has none."""
    logger: Any = getattr(training.CHECKPOINT_LOGGER.holder, training.CHECKPOINT_LOGGER.name, None)
    return logger if isinstance(logger, logging.Logger) else None


def _ending(error: BaseException | None) -> tuple[How, Failure | None]:
    failure = failure_of(error)
    return How.ABANDONED if failure is None else How.FAILED, failure


def failure_of(error: BaseException | None) -> Failure | None:
    """Return the failure of an activity, or None for exceptions that are not errors, such as Ctrl-C."""
    if error is None:
        return None
    kind = type(error).__qualname__
    failures: Any = getattr(error, "failures", None)
    if type(failures) is DICT and failures:  # a CheckpointException: its message is a stack for each rank
        first: Any = next(iter(failures.values()))
        inner: Any = first[0] if type(first) is TUPLE and first else first
        if isinstance(inner, BaseException) and not isinstance(inner, Exception):
            return None
        if isinstance(inner, Exception):
            return Failure(kind, text_of(f"{type(inner).__qualname__}: {message_of(inner)}"))
    return Failure(kind, message_of(error)) if isinstance(error, Exception) else None
