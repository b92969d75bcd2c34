"""Records `torch.save` and `torch.load` of files.

`torch.save` and `torch.load` open their zip files through two globals of `torch.serialization`, however the program has
imported them. Files in the old format are not recorded, nor are buffers and streams, which
`torch.distributed.checkpoint` uses.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.parts.checkpoints.distributed import failure_of
from otel_torchdist.capture.parts.checkpoints.open_activities import OpenActivities, text_of
from otel_torchdist.capture.upstream import training
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.tape.layout import ActivityWord

_FILE: Final = "file"
_CONTEXT: Final = "checkpoint file"


class CheckpointFiles:
    """Recorder of the files that `torch.save` writes and `torch.load` reads."""

    def __init__(self, activities: OpenActivities) -> None:
        self._activities = activities

    def wrap_open(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a global of `torch.serialization` that opens a file."""
        kind = ActivityKind.TORCH_SAVE if name == training.OPEN_WRITER.name else ActivityKind.TORCH_LOAD

        def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
            recorded = self._begin(kind, file)
            if recorded is None:
                return original(file, *args, **kwargs)
            try:
                return _Opened(original(file, *args, **kwargs), recorded)
            except BaseException as error:
                recorded.end(error)
                raise

        return opened

    def _begin(self, kind: ActivityKind, file: Any) -> _RecordedFile | None:
        if self._activities.recorder is None:
            return None
        try:
            path = _path_of(file) if kind is ActivityKind.TORCH_SAVE else _path_of_reader(file)
            current = self._activities.current
            if path is None or (current is not None and current.open):  # inside a checkpoint or another file
                return None
            size = 0 if kind is ActivityKind.TORCH_SAVE else _size_of(path)
            return _RecordedFile(self._activities, kind, path, size)
        except Exception as error:
            guard.report(_CONTEXT, error)
            return None


class _RecordedFile:
    """A file that is being written or read."""

    def __init__(self, activities: OpenActivities, kind: ActivityKind, path: str, size: int) -> None:
        self._activities = activities
        self._kind = kind
        self._path = path
        activity = activities.begin(kind, text_of(path), self, size)
        if activity is not None:
            activity.note(ActivityWord.STORAGE, activities.texts.id_of(activity.tape, _FILE))

    def end(self, error: BaseException | None) -> None:
        """Record that the file was closed, or that an exception occurred."""
        try:
            current = self._activities.current
            activity = (
                next((activity for activity in current.open if activity.key is self), None)
                if current is not None
                else None
            )
            failure = failure_of(error)
            if activity is not None and error is None:
                activity.add_amount(_size_of(self._path), 1)
            ending = How.CALL if error is None else How.FAILED if failure is not None else How.ABANDONED
            self._activities.end(self, ending, failure)
        except Exception as our_error:
            guard.report(_CONTEXT, our_error)


class _Opened:
    """The context manager of an open file. Records its end."""

    def __init__(self, opener: Any, recorded: _RecordedFile) -> None:
        self._opener = opener
        self._recorded = recorded

    def __enter__(self) -> Any:
        return self._opener.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        try:
            result = self._opener.__exit__(kind, error, trace)
        except BaseException as raised:  # such as a full disk
            self._recorded.end(raised)
            raise
        self._recorded.end(error)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opener, name)


def _path_of(file: Any) -> str | None:
    """Return the path of a writer's file, or None for a stream."""
    if type(file) is str:
        return file
    return _decoded(file) if _is_path(file) else None


def _path_of_reader(file: Any) -> str | None:
    """Return the path of a file that torch has opened for reading, or None for other sources."""
    if type(file) is str:
        return file
    name: Any = file.name if type(file) is io.BufferedReader else None
    return name if type(name) is str else _decoded(name) if _is_path(name) else None


def _is_path(value: Any) -> bool:
    return isinstance(value, (os.PathLike, bytes))


def _decoded(path: Any) -> str:
    return os.fsdecode(path)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError) as error:
        guard.pass_on(error)
        return 0
