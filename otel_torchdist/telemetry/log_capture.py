"""Takes what an exporter logs about its own failures, so that a dead endpoint is one warning and not one per batch."""

from __future__ import annotations

import logging
import threading
from types import TracebackType


class LogCapture(logging.Filter):
    """While entered, keeps what this thread logs to the loggers of an exporter's modules out of the log.

    Other users of the same exporter classes log as before.

    Attributes:
        messages: What was kept out since it was entered.
    """

    def __init__(self, exporter: object) -> None:
        """Capture for `exporter`."""
        super().__init__()
        # By convention a module's logger has the module's name; base classes log from modules of their own.
        names = {cls.__module__ for cls in type(exporter).__mro__ if cls is not object}
        self._loggers = [logging.getLogger(name) for name in sorted(names)]
        self._thread = 0
        self.messages: list[str] = []

    def __enter__(self) -> LogCapture:
        """Begin to capture."""
        self._thread = threading.get_ident()
        self.messages = []
        for logger in self._loggers:
            logger.addFilter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let everything through again."""
        for logger in self._loggers:
            logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record goes to the log."""
        if threading.get_ident() != self._thread:
            return True
        self.messages.append(record.getMessage())
        return False
