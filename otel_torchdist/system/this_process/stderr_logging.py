"""Log levels that keep a verdict from appearing twice on a job's standard error: as a notice and as a log line."""

from __future__ import annotations

import logging
import sys
from typing import Final

NOTICE: Final = "NOTICE"
"""Level, in an agent's log, of notices that a rank logs for an agent that cannot write to the job's standard error."""
ANNOUNCED: Final = "ANNOUNCED"
"""Level, in an agent's log, of warnings that the agent has already written to the job's standard error."""
_LEVEL: Final = "otel_torchdist_level"


def logged_as(level: str) -> dict[str, str]:
    """Return the `extra` of a log record that gives it this level in an agent's log."""
    return {_LEVEL: level}


class LevelFormatter(logging.Formatter):
    """A formatter for records with levels of `logged_as`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        record.levelname = getattr(record, _LEVEL, record.levelname)
        return super().format(record)


def goes_to_stderr_only(logger: logging.Logger) -> bool:
    """Return whether all handlers of a logger write to standard error, as does Python's default without handlers."""
    return all(map(_writes_to_stderr, _handlers_of(logger)))


def log_beyond_stderr(logger: logging.Logger, level: int, message: str) -> None:
    """Log a message to the handlers that do not write to standard error, such as files and exporters."""
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, __file__, 0, "%s", (message,), None)
    for handler in _handlers_of(logger):
        if level >= handler.level and not _writes_to_stderr(handler):
            handler.handle(record)


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    current: logging.Logger | None = logger
    while current is not None:
        handlers += current.handlers
        current = current.parent if current.propagate else None
    return handlers


def _writes_to_stderr(handler: logging.Handler) -> bool:
    if isinstance(handler, logging.NullHandler):
        return True
    is_stream = isinstance(handler, logging.StreamHandler)
    return is_stream and vars(handler).get("stream") in (sys.stderr, sys.__stderr__)
