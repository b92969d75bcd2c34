"""The stack of open checkpoint activities of each thread, and their records on the tape.

An activity without an end message ends with its parent. Without a parent, it ends when its thread has left torch's
checkpoint code.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.intervals import RecordedInterval, frames_by_thread
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.names import SPARE_OF_LABELS
from otel_torchdist.tape.layout import ActivityWord, prepare_activity

if TYPE_CHECKING:
    from types import FrameType

    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.tape.writer import TapeWriter

MAX_TEXT: Final = 200
MAX_TEXTS: Final = 256
"""Maximum number of texts stored in full. In later texts, digits become `#`: a job may save a million times."""
_ELLIPSIS: Final = "…"
_NUMBER: Final = re.compile(r"\d+")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{1,15})://", re.IGNORECASE)


class Texts:
    """The name ids of texts of the program on a tape: checkpoint ids, storages, messages. Bounded."""

    def __init__(self) -> None:
        self._tape: TapeWriter | None = None
        self._name_ids: dict[str, int] = {}

    def id_of(self, tape: TapeWriter, text: str) -> int:
        """Return the name id of a text; 0 for an empty one, or if there is no room."""
        if tape is not self._tape:
            self._tape, self._name_ids = tape, {}
        if not text:
            return 0
        name_id = self._name_ids.get(text)
        if name_id is not None:
            return name_id
        if len(self._name_ids) >= MAX_TEXTS:
            return tape.names.intern_optional(_NUMBER.sub("#", text), SPARE_OF_LABELS)
        name_id = self._name_ids[text] = tape.names.intern_optional(text, SPARE_OF_LABELS)
        return name_id


@guard.calls_plug_ins
def text_of(value: Any) -> str:
    """Convert a path, id or message to valid text. Keep the end of long texts, which distinguishes paths."""
    if value is None:
        return ""
    try:
        text = os.fsdecode(value) if isinstance(value, bytes) else str(value)
    except Exception as error:  # an object of the program
        guard.pass_on(error)
        return type(value).__name__
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else _ELLIPSIS + text[1 - MAX_TEXT :]


def message_of(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    message = text_of(error).strip()
    return message.splitlines()[0] if message else ""


def storage_of(kind: str, path: str) -> str:
    """Return the name of a storage: its class, with the scheme of its path, such as `FsspecWriter (s3)`."""
    scheme = _SCHEME.match(path)
    return f"{kind} ({scheme[1].lower()})" if scheme is not None else kind


MAX_IN_STEP: Final = 16
"""Maximum number of records of each kind per step. A program may load each sample by `torch.load`."""
COUNT_RESET_NS: Final = 10_000_000_000
"""Time in ns after which the count restarts, for programs without steps."""
MAX_STAGES: Final = 64
"""Maximum number of records in an outermost activity."""
MIN_AGE_NS: Final = 1_000_000_000
"""Minimum age in ns of activities whose threads are checked."""
CHECKPOINT_FILES: Final = ("torch/distributed/checkpoint/logger.py", "torch/serialization.py")
"""Suffixes of torch's files that are on a thread's stack during an activity."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that ended an activity: type and message."""

    type: str
    message: str = ""


class OpenActivity(RecordedInterval):
    """An activity that a thread is in.

    Attributes:
        key: Identifies the activity when it ends.
        ended_ns: Monotonic time of its end, if its bytes are counted afterwards; otherwise 0.
        expected_bytes: Bytes that a stage will write or read; 0 if unknown.
        expected_files: Number of files that a stage will read; 0 if unknown.
        message_bytes: Bytes written or read.
        files: Number of files written or read.
        stages: Number of nested activities so far.
    """

    __slots__ = ("ended_ns", "expected_bytes", "expected_files", "files", "key", "kind", "message_bytes", "stages")

    def __init__(self, tape: TapeWriter, kind: ActivityKind, key: object) -> None:
        """Begin the activity now, without a record."""
        super().__init__(tape, time.monotonic_ns())
        self.kind = kind
        self.key = key
        self.ended_ns = 0
        self.expected_bytes = self.expected_files = 0
        self.message_bytes = self.files = 0
        self.stages = 0

    def note(self, word: ActivityWord, value: int) -> None:
        """Record a number before the end."""
        if self.number and value:
            self.tape.mark(self.number, word, value, How.CALL)

    def add_amount(self, message_bytes: int, files: int) -> None:
        """Add to the bytes and files that were written or read."""
        self.message_bytes += message_bytes
        self.files += files


@dataclass(slots=True)
class ThreadActivities:
    """The open activities of one thread.

    Attributes:
        open: The activities, innermost last.
        deferring: Index in `open` of the activity whose end is deferred until its bytes are counted; -1 for none.
        deferred: That activity, once it has ended.
    """

    open: list[OpenActivity] = field(default_factory=list[OpenActivity])
    deferring: int = -1
    deferred: OpenActivity | None = None

    @property
    def operation(self) -> OpenActivity | None:
        """The innermost save or load."""
        return next((entry for entry in reversed(self.open) if entry.kind is not ActivityKind.CHECKPOINT_STAGE), None)


class OpenActivities:
    """The open checkpoint activities of all threads.

    Attributes:
        recorder: The current recorder, or None.
        texts: Name ids of the program's texts.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.texts = Texts()
        self._by_thread = dict[int, ThreadActivities]()
        self._step = -1
        self._reset_ns = 0
        self._recorded = Counter[ActivityKind]()

    @property
    def current(self) -> ThreadActivities | None:
        """The activities of the calling thread, or None."""
        return self._by_thread.get(threading.get_ident())

    def begin(self, kind: ActivityKind, detail: str, key: object, message_bytes: int = 0) -> OpenActivity | None:
        """Record that an activity begins on the calling thread.

        Args:
            kind: Kind of the activity.
            detail: The checkpoint id or the stage.
            key: See `OpenActivity`.
            message_bytes: Bytes that it will write or read, if known.

        Returns:
            The activity, or None without a recorder.
        """
        recorder = self.recorder
        if recorder is None:
            return None
        current = self._by_thread.setdefault(threading.get_ident(), ThreadActivities())
        tape, enclosing = recorder.tape, current.open[-1] if current.open else None
        entered = OpenActivity(tape, kind, key)
        has_room = self._has_room(recorder.step, current, entered)
        current.open.append(entered)
        if not has_room:
            return entered
        parent = enclosing.number if enclosing is not None and enclosing.tape is tape else 0
        prepared = prepare_activity(kind, self.texts.id_of(tape, detail), threading.get_native_id(), message_bytes)
        entered.begin(recorder.step, parent, prepared)
        return entered

    def end(self, key: object, how: How, failure: Failure | None = None) -> None:
        """Record the end of an activity of the calling thread, and of open activities inside it.

        Args:
            key: Key of the activity. An unknown key is ignored.
            how: Kind of the end.
            failure: The exception that ended it.
        """
        current = self.current
        depth = (
            next((index for index in reversed(range(len(current.open))) if current.open[index].key == key), -1)
            if current
            else -1
        )
        if current is None or depth < 0:
            return
        self._leave(current, depth + 1)
        ended = current.open.pop()
        if depth == current.deferring and how is How.CALL:
            ended.ended_ns, current.deferred = time.monotonic_ns(), ended
            return
        self.complete(ended, how, failure)
        self._forget_if_idle(current)

    def fail_innermost(self, depth: int, failure: Failure | None) -> None:
        """Record that an exception ended the calling thread's activities above a depth."""
        current = self.current
        if current is None:
            return
        while len(current.open) > depth:
            self.complete(current.open.pop(), How.ABANDONED if failure is None else How.FAILED, failure)
        self._forget_if_idle(current)

    def complete(self, ended: OpenActivity, how: How, failure: Failure | None = None) -> None:
        """Record the end of an activity, with its bytes and files."""
        if not ended.number:
            return
        ended.note(ActivityWord.BYTES, ended.message_bytes)
        ended.note(ActivityWord.FILES, ended.files)
        tape, name = ended.tape, 0
        if failure is not None:
            name = tape.names.intern_optional(failure.type, SPARE_OF_LABELS)
            ended.note(ActivityWord.EXPLANATION, self.texts.id_of(tape, failure.message))
        tape.complete(ended.number, ended.entered_ns, ended.ended_ns or time.monotonic_ns(), how, name)

    def end_abandoned(self, min_age_ns: int = MIN_AGE_NS) -> None:
        """Record the ends of activities without an end message. Called once a second."""
        before_ns = time.monotonic_ns() - min_age_ns
        threads = [
            (thread, current, next(iter(current.open), None)) for thread, current in list(self._by_thread.items())
        ]
        old = [(thread, current, first) for thread, current, first in threads if first and first.entered_ns < before_ns]
        frames = next(frames_by_thread()) if old else {}
        for thread, current, outermost in old:
            if outermost.is_left(_is_inside(frames.get(thread))):
                self._leave(current, 0)
                self._by_thread.pop(thread, None)

    def forget_all(self, ends_abandoned: bool) -> None:
        """Drop all activities, because the tape ends or belongs to another process.

        Args:
            ends_abandoned: Whether to record the ends of activities without an end message.
        """
        by_thread, self._by_thread = self._by_thread, dict[int, ThreadActivities]()
        frames = next(frames_by_thread()) if ends_abandoned and by_thread else {}
        for thread, current in by_thread.items() if ends_abandoned else ():
            if not _is_inside(frames.get(thread)):
                self._leave(current, 0)

    def _leave(self, current: ThreadActivities, depth: int) -> None:
        while len(current.open) > depth:
            self.complete(current.open.pop(), How.ABANDONED)

    def _forget_if_idle(self, current: ThreadActivities) -> None:
        if not current.open and current.deferring < 0:
            self._by_thread.pop(threading.get_ident(), None)

    def _has_room(self, step: int, current: ThreadActivities, entered: OpenActivity) -> bool:
        if current.open:
            outermost = current.open[0]
            outermost.stages += 1
            return outermost.number > 0 and outermost.stages <= MAX_STAGES
        if step != self._step or entered.entered_ns - self._reset_ns > COUNT_RESET_NS:
            self._step, self._reset_ns = step, entered.entered_ns
            self._recorded.clear()
        self._recorded[entered.kind] += 1
        return self._recorded[entered.kind] <= MAX_IN_STEP


def _is_inside(frame: FrameType | None) -> bool:
    """Return whether a frame or one of its callers is in torch's code around a checkpoint."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(CHECKPOINT_FILES):
            return True
        frame = frame.f_back
    return False
