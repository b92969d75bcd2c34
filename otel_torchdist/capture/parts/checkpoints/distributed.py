"""Records `torch.distributed.checkpoint`: saves and loads with their stages.

torch logs the beginning and the end of each to a logger of its own, which exists to be listened to; where an exception
leaves a stage, only that of the whole is logged. Bytes, files and the exceptions of stages are seen where its
collectives call a function on each rank.
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
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.tape.layout import ActivityWord

if TYPE_CHECKING:
    from otel_torchdist.capture.core.torch_api import Patches

MAX_ITEMS: Final = 100_000
"""Entries of a plan that are looked at."""
_STORAGE: Final = ("storage_writer", "storage_reader")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is written or read, as the plans and results of `torch.distributed.checkpoint` say.

    Planners, writers and readers may be anybody's: what is not as torch makes it counts as unknown.

    Attributes:
        message_bytes: Bytes; 0 if not known.
        files: Files; 0 if not known.
    """

    message_bytes: int = 0
    files: int = 0


NOTHING: Final = Amount()


def storage_in(function: Callable[..., Any]) -> Any:
    """Return the writer or reader that a stage's function refers to; None if there is none."""
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
    """What a writer or reader is called; '' for None."""
    return "" if storage is None else storage_of(text_of(type(storage).__name__), path)


@guard.calls_plug_ins
def planned(plan: Any, storage: Any) -> Amount:
    """How much a rank's plan makes it write, or read from this storage."""
    try:
        items: Any = plan.items[:MAX_ITEMS]
        stored: Any = getattr(storage, "storage_data", None)
        if stored and items and hasattr(items[0], "storage_index"):
            entries = {item.storage_index: stored[item.storage_index] for item in items}.values()
            return Amount(sum(int(one.length) for one in entries), len({one.relative_path for one in entries}))
        return Amount(sum(_bytes_of(item) for item in items))
    except Exception as error:
        guard.pass_on(error)
        return NOTHING


def _bytes_of(item: Any) -> int:
    data: Any = getattr(item, "tensor_data", None)
    return 0 if data is None else math.prod(data.chunk.sizes) * int(data.properties.dtype.itemsize)


@guard.calls_plug_ins
def written(results: Any) -> Amount:
    """How much the results of `write_data` say was written."""
    try:
        if type(results) is not LIST or not results or not hasattr(results[0], "size_in_bytes"):
            return NOTHING
        files = {text_of(getattr(one.storage_data, "relative_path", None)) for one in results} - {""}
        return Amount(sum(int(one.size_in_bytes) for one in results), len(files))
    except Exception as error:
        guard.pass_on(error)
        return NOTHING


_LOGGER_MODULE: Final = "torch.distributed.checkpoint.logger"
_UTILS: Final = "torch.distributed.checkpoint.utils"
_OPERATIONS: Final = {
    "save": ActivityKind.CHECKPOINT_SAVE,
    "load": ActivityKind.CHECKPOINT_LOAD,
    "async_save": ActivityKind.CHECKPOINT_ASYNC_SAVE,
}
_WRITES: Final = "write_data"
_READS: Final = "read_data"
_MOVES_DATA: Final = (_WRITES, _READS)
_WHERE: Final = "checkpoint"

_logger = logging.getLogger("otel_torchdist")


class DistributedCheckpoints(logging.Handler):
    """Records what torch logs of its checkpoints."""

    def __init__(self, activities: OpenActivities, patches: Patches) -> None:
        """Record nothing until `hook`."""
        super().__init__(logging.DEBUG)
        self._activities = activities
        self._patches = patches
        self._watching = threading.Lock()
        self._is_complete = False
        self._has_warned = False

    def hook(self) -> None:
        """Begin to listen."""
        logging.getLogger(CHECKPOINT_LOGGER).addHandler(self)
        self.check()

    def unhook(self) -> None:
        """Stop listening."""
        for logger in (logging.getLogger(CHECKPOINT_LOGGER), _logger_of_torch()):
            if logger is not None:
                logger.removeHandler(self)

    def check(self) -> None:
        """Listen once the program has imported the package, to its logger under whatever name; called once a second."""
        if hasattr(sys.modules.get(_UTILS), "_DistWrapper"):  # else another thread may be about to import it
            self._watch_stages()
        logger = _logger_of_torch()
        if logger is not None and self not in logger.handlers:
            logger.addHandler(self)

    def _warn_if_silent(self) -> None:
        """Warn once that nothing is logged although the program saves or loads."""
        logger = _logger_of_torch()
        is_heard = logger is not None and logger.isEnabledFor(logging.DEBUG)
        if self._has_warned or is_heard or self._activities.recorder is None:
            return
        self._has_warned = True
        why = "this torch logs none" if logger is None else f"the logger {logger.name} is disabled"
        _logger.warning("checkpoints are not recorded: %s (`logging.disable` and `dictConfig` do that)", why)

    def emit(self, record: logging.LogRecord) -> None:
        """Take what torch logs, on the thread that it happens on."""
        message: Any = record.msg
        if self._activities.recorder is None or type(message) is not DICT:
            return
        try:
            if not self._is_complete:  # with the first message of the process, the package is imported
                self._watch_stages()
            self._take(message)
        except Exception as error:
            guard.report(_WHERE, error)

    def _take(self, message: dict[str, Any]) -> None:
        event, key, name = message.get("event"), message.get("uuid"), message.get("func_name")
        if type(name) is not str or type(key) is not str or "." in name:  # one for each entry of a state dict
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
        mine = self._activities.of_thread
        operation = mine.operation if mine is not None else None
        expected = operation.expected_bytes if operation is not None and name in _MOVES_DATA else 0
        self._activities.begin(ActivityKind.CHECKPOINT_STAGE, text_of(name), key, expected)

    def _watch_stages(self) -> None:
        if not self._watching.acquire(blocking=False):  # a forked child may find it taken for ever
            return
        try:
            if not self._is_complete:
                self._is_complete = True
                self._replace_collectives()
        finally:
            self._watching.release()

    def _replace_collectives(self) -> None:
        owner = getattr(sys.modules.get(_UTILS), "_DistWrapper", None)
        makers = {name: getattr(owner, name, None) for name in ("reduce_scatter", "all_reduce", "all_gather")}
        missing = [name for name, original in makers.items() if original is None]
        if missing:
            _logger.warning("this torch has no _DistWrapper.%s: bytes of checkpoints are not known", missing[0])
        for name in makers:
            self._patches.replace(owner, name, self._make_collective)

    def _make_collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        activities = self._activities

        def collective(wrapper: Any, step: Any, map_fun: Any, *args: Any, **kwargs: Any) -> Any:
            mine = activities.of_thread
            if mine is None or not mine.open or not callable(map_fun):
                with guard.guarded(_WHERE):
                    self._warn_if_silent()
                return original(wrapper, step, map_fun, *args, **kwargs)
            key = object()
            parts = _Parts(activities, map_fun)
            with guard.guarded(_WHERE):
                activities.begin(ActivityKind.CHECKPOINT_STAGE, text_of(step), key)
                parts.name_storage()
            if args and callable(args[0]):
                args = (parts.watched(args[0]), *args[1:])
            elif callable(kwargs.get("reduce_fun")):
                kwargs["reduce_fun"] = parts.watched(kwargs["reduce_fun"])
            try:
                result = original(wrapper, step, parts.watched(map_fun), *args, **kwargs)
            except BaseException as error:
                with guard.guarded(_WHERE):
                    activities.end(key, *_ending(error))
                raise
            with guard.guarded(_WHERE):
                parts.expect(result)
            with guard.guarded(_WHERE):
                activities.end(key, How.CALL)
            return result

        return collective


class _Parts:
    """What one collective of a checkpoint calls on this rank."""

    def __init__(self, activities: OpenActivities, map_fun: Callable[..., Any]) -> None:
        self._activities = activities
        self._storage = storage_in(map_fun)

    def name_storage(self) -> None:
        """Record where the checkpoint is stored, as soon as that is known."""
        mine = self._activities.of_thread
        operation = mine.operation if mine is not None else None
        if operation is None or self._storage is None:
            return
        path = text_of(getattr(self._storage, "path", None))
        name = name_of_storage(self._storage, path)
        operation.note(ActivityWord.STORAGE, self._activities.texts.id_of(operation.tape, name))

    def expect(self, plan: Any) -> None:
        """Note how much is going to be written or read, if the result is a plan."""
        mine = self._activities.of_thread
        operation = mine.operation if mine is not None else None
        if operation is None or not hasattr(plan, "items") or isinstance(plan, dict):
            return
        amount = planned(plan, self._storage)
        operation.expected_bytes, operation.expected_files = amount.message_bytes, amount.files

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with the end of the stage in it recorded once its result is known."""
        activities = self._activities

        def part(*args: Any) -> Any:
            mine = activities.of_thread
            if mine is None:
                return function(*args)
            depth, deferring = len(mine.open), mine.deferring
            mine.deferring = depth
            try:
                result = function(*args)
            except BaseException as error:
                with guard.guarded(_WHERE):
                    activities.fail_innermost(depth, failure_of(error))
                raise
            finally:
                mine.deferring = deferring
            with guard.guarded(_WHERE):
                self._count(result)
            return result

        return part

    def _count(self, result: Any) -> None:
        mine = self._activities.of_thread
        if mine is None:
            return
        ended, mine.deferred = mine.deferred, None
        if ended is None:
            return
        operation, amount = mine.operation, written(result)
        if result is None and operation is not None and operation.kind is ActivityKind.CHECKPOINT_LOAD:  # `read_data`
            amount = Amount(operation.expected_bytes, operation.expected_files)
        ended.add_written(amount.message_bytes, amount.files)
        if operation is not None:
            operation.add_written(amount.message_bytes, amount.files)
        self._activities.complete(ended, How.CALL)


def _logger_of_torch() -> logging.Logger | None:
    """Return the logger, if the program has imported the package and it has one."""
    logger: Any = getattr(sys.modules.get(_LOGGER_MODULE), "_dcp_logger", None)
    return logger if isinstance(logger, logging.Logger) else None


def _ending(error: BaseException | None) -> tuple[How, Failure | None]:
    failure = failure_of(error)
    return How.ABANDONED if failure is None else How.FAILED, failure


def failure_of(error: BaseException | None) -> Failure | None:
    """What ended an activity; None for what is no error, such as Ctrl-C."""
    if error is None:
        return None
    kind = type(error).__qualname__
    failures: Any = getattr(error, "failures", None)
    if type(failures) is DICT and failures:  # a CheckpointException, whose own message is a stack for each rank
        first: Any = next(iter(failures.values()))
        inner: Any = first[0] if type(first) is TUPLE and first else first
        if isinstance(inner, BaseException) and not isinstance(inner, Exception):
            return None
        if isinstance(inner, Exception):
            return Failure(kind, text_of(f"{type(inner).__qualname__}: {message_of(inner)}"))
    return Failure(kind, message_of(error)) if isinstance(error, Exception) else None
