"""The checkpoint activities that each thread is in, innermost last, and their records on the tape.

An activity that was left without a word is ended with the one around it. If there is none, it is ended when its thread
is seen outside of it.
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
"""Texts of a tape that become names as they are; a job may save a million times. Later ones lose their numbers."""
_ELLIPSIS: Final = "…"
_NUMBER: Final = re.compile(r"\d+")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{1,15})://", re.IGNORECASE)


class Texts:
    """Gives the program's texts ids in a tape's dictionary: checkpoint ids, storages, messages, all bounded."""

    def __init__(self) -> None:
        self._tape: TapeWriter | None = None
        self._known: dict[str, int] = {}

    def id_of(self, tape: TapeWriter, text: str) -> int:
        """Return the name id of a text; 0 for an empty one, or if there is no room."""
        if tape is not self._tape:
            self._tape, self._known = tape, {}
        if not text:
            return 0
        known = self._known.get(text)
        if known is not None:
            return known
        if len(self._known) >= MAX_TEXTS:
            return tape.names.find_room(_NUMBER.sub("#", text), SPARE_OF_LABELS)
        found = self._known[text] = tape.names.find_room(text, SPARE_OF_LABELS)
        return found


@guard.calls_plug_ins
def text_of(value: Any) -> str:
    """Return a path, id or message as text that any encoding can hold; of a long one the end, which tells paths apart."""
    if value is None:
        return ""
    try:
        text = os.fsdecode(value) if isinstance(value, bytes) else str(value)
    except Exception as error:  # an object of the program's
        guard.pass_on(error)
        return type(value).__name__
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else _ELLIPSIS + text[1 - MAX_TEXT :]


def message_of(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    message = text_of(error).strip()
    return message.splitlines()[0] if message else ""


def storage_of(kind: str, path: str) -> str:
    """What stores a checkpoint: a class, with the scheme of a path that has one: `FsspecWriter (s3)`."""
    scheme = _SCHEME.match(path)
    return f"{kind} ({scheme[1].lower()})" if scheme is not None else kind


MAX_IN_STEP: Final = 16
"""Recorded of each kind in a training step; a program may load each of its samples by `torch.load`."""
RENEWED_NS: Final = 10_000_000_000
"""After this long as many are recorded again, for programs that take no steps."""
MAX_STAGES: Final = 64
"""Recorded in one activity that is in no other."""
MIN_AGE_NS: Final = 1_000_000_000
"""Age from which it is checked whether a thread is still in an activity."""
HOME_FILES: Final = ("torch/distributed/checkpoint/logger.py", "torch/serialization.py")
"""Ends of the files of torch in which an activity's thread has a frame for as long as it lasts."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended an activity: the type of an exception, and its message."""

    type: str
    message: str = ""


class OpenActivity(RecordedInterval):
    """An activity that a thread is in.

    Attributes:
        kind: What it is.
        key: What tells its end from those of others.
        ended_ns: When it ended, if what it has written is counted only afterwards; 0 if not.
        expected_bytes: What a stage of it is going to write or read, as far as known.
        expected_files: From how many files; 0 if that is not known.
        message_bytes: What it has written or read.
        files: In or from how many files.
        stages: How many activities have begun in it.
    """

    __slots__ = ("ended_ns", "expected_bytes", "expected_files", "files", "key", "kind", "message_bytes", "stages")

    def __init__(self, tape: TapeWriter, kind: ActivityKind, key: object) -> None:
        """Begin it now, without a record."""
        super().__init__(tape, time.monotonic_ns())
        self.kind = kind
        self.key = key
        self.ended_ns = 0
        self.expected_bytes = self.expected_files = 0
        self.message_bytes = self.files = 0
        self.stages = 0

    def note(self, word: ActivityWord, value: int) -> None:
        """Record a number that is known before the end."""
        if self.number and value:
            self.tape.mark(self.number, word, value, How.CALL)

    def add_written(self, message_bytes: int, files: int) -> None:
        """Count bytes and files."""
        self.message_bytes += message_bytes
        self.files += files


@dataclass(slots=True)
class ThreadActivities:
    """What one thread is in.

    Attributes:
        open: Its activities, innermost last.
        deferring: At which depth the end of an activity waits until what it has written is counted; -1 for none.
        deferred: That activity, once it has ended.
    """

    open: list[OpenActivity] = field(default_factory=list[OpenActivity])
    deferring: int = -1
    deferred: OpenActivity | None = None

    @property
    def operation(self) -> OpenActivity | None:
        """The innermost save or load."""
        return next((one for one in reversed(self.open) if one.kind is not ActivityKind.CHECKPOINT_STAGE), None)


class OpenActivities:
    """Records the checkpoint activities of all threads.

    Attributes:
        recorder: Where to; None to record nothing.
        texts: Names of what the program calls its checkpoints.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.texts = Texts()
        self._of_threads = dict[int, ThreadActivities]()
        self._step = -1
        self._renewed_ns = 0
        self._recorded = Counter[ActivityKind]()

    @property
    def of_thread(self) -> ThreadActivities | None:
        """What the calling thread is in; None if that is nothing."""
        return self._of_threads.get(threading.get_ident())

    def begin(self, kind: ActivityKind, detail: str, key: object, message_bytes: int = 0) -> OpenActivity | None:
        """Record that an activity begins on the calling thread.

        Args:
            kind: What it is.
            detail: What tells it apart: the checkpoint, or the stage.
            key: See `OpenActivity`.
            message_bytes: What it is going to write or read, if that is known.

        Returns:
            None if nothing is recorded now.
        """
        recorder = self.recorder
        if recorder is None:
            return None
        mine = self._of_threads.setdefault(threading.get_ident(), ThreadActivities())
        tape, around = recorder.tape, mine.open[-1] if mine.open else None
        entered = OpenActivity(tape, kind, key)
        has_room = self._has_room(recorder.step, mine, entered)
        mine.open.append(entered)
        if not has_room:
            return entered
        parent = around.number if around is not None and around.tape is tape else 0
        prepared = prepare_activity(kind, self.texts.id_of(tape, detail), threading.get_native_id(), message_bytes)
        entered.begin(recorder.step, parent, prepared)
        return entered

    def end(self, key: object, how: How, failure: Failure | None = None) -> None:
        """Record that an activity of the calling thread has ended, and with it those within it that had no end.

        Args:
            key: That of the activity; nothing happens if it is not known.
            how: How it has ended.
            failure: The exception that ended it.
        """
        mine = self.of_thread
        depth = next((at for at in reversed(range(len(mine.open))) if mine.open[at].key == key), -1) if mine else -1
        if mine is None or depth < 0:
            return
        self._leave(mine, depth + 1)
        ended = mine.open.pop()
        if depth == mine.deferring and how is How.CALL:
            ended.ended_ns, mine.deferred = time.monotonic_ns(), ended
            return
        self.complete(ended, how, failure)
        self._forget_if_idle(mine)

    def fail_innermost(self, depth: int, failure: Failure | None) -> None:
        """Record that an exception has ended the activities that the calling thread has begun above a depth."""
        mine = self.of_thread
        if mine is None:
            return
        while len(mine.open) > depth:
            self.complete(mine.open.pop(), How.ABANDONED if failure is None else How.FAILED, failure)
        self._forget_if_idle(mine)

    def complete(self, ended: OpenActivity, how: How, failure: Failure | None = None) -> None:
        """Record the end of an activity, and what it has written or read."""
        if not ended.number:
            return
        ended.note(ActivityWord.BYTES, ended.message_bytes)
        ended.note(ActivityWord.FILES, ended.files)
        tape, name = ended.tape, 0
        if failure is not None:
            name = tape.names.find_room(failure.type, SPARE_OF_LABELS)
            ended.note(ActivityWord.EXPLANATION, self.texts.id_of(tape, failure.message))
        tape.complete(ended.number, ended.entered_ns, ended.ended_ns or time.monotonic_ns(), how, name)

    def end_left(self, min_age_ns: int = MIN_AGE_NS) -> None:
        """Record as ended what was left without a word; called once a second."""
        before_ns = time.monotonic_ns() - min_age_ns
        known = [(thread, mine, next(iter(mine.open), None)) for thread, mine in list(self._of_threads.items())]
        old = [(thread, mine, first) for thread, mine, first in known if first and first.entered_ns < before_ns]
        frames = next(frames_by_thread()) if old else {}
        for thread, mine, outermost in old:
            if outermost.is_left(_is_inside(frames.get(thread))):
                self._leave(mine, 0)
                self._of_threads.pop(thread, None)

    def forget_all(self, ends_left: bool) -> None:
        """Forget what is recorded, because the tape ends or is another process's.

        Args:
            ends_left: Whether to record as ended what was left without a word.
        """
        known, self._of_threads = self._of_threads, dict[int, ThreadActivities]()
        frames = next(frames_by_thread()) if ends_left and known else {}
        for thread, mine in known.items() if ends_left else ():
            if not _is_inside(frames.get(thread)):
                self._leave(mine, 0)

    def _leave(self, mine: ThreadActivities, depth: int) -> None:
        while len(mine.open) > depth:
            self.complete(mine.open.pop(), How.ABANDONED)

    def _forget_if_idle(self, mine: ThreadActivities) -> None:
        if not mine.open and mine.deferring < 0:
            self._of_threads.pop(threading.get_ident(), None)

    def _has_room(self, step: int, mine: ThreadActivities, entered: OpenActivity) -> bool:
        if mine.open:
            outermost = mine.open[0]
            outermost.stages += 1
            return outermost.number > 0 and outermost.stages <= MAX_STAGES
        if step != self._step or entered.entered_ns - self._renewed_ns > RENEWED_NS:
            self._step, self._renewed_ns = step, entered.entered_ns
            self._recorded.clear()
        self._recorded[entered.kind] += 1
        return self._recorded[entered.kind] <= MAX_IN_STEP


def _is_inside(frame: FrameType | None) -> bool:
    """Return whether a frame, or one that called it, is of the code around a checkpoint."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(HOME_FILES):
            return True
        frame = frame.f_back
    return False
