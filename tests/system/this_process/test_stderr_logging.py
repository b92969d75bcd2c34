"""Lines that standard error has already, for the other handlers of a logger."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from otel_torchdist.system.this_process.stderr_logging import log_beyond_stderr


@pytest.mark.parametrize(("threshold", "expected"), [(logging.WARNING, "stall\n"), (logging.ERROR, "")])
def test_file_and_standard_error(threshold: int, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a parent gets the line unless its level is higher; standard error does not get it again."""
    parent = logging.getLogger("test_stderr_logging")
    logger = logging.getLogger("test_stderr_logging.child")
    parent.propagate = False
    file = io.StringIO()
    handler = logging.StreamHandler(file)
    handler.setLevel(threshold)
    parent.handlers = [logging.StreamHandler(sys.stderr), handler]
    log_beyond_stderr(logger, logging.WARNING, "stall")
    assert file.getvalue() == expected
    assert capsys.readouterr().err == ""


def test_level_of_the_logger(capsys: pytest.CaptureFixture[str]) -> None:
    """A logger whose level is higher passes nothing on."""
    logger = logging.getLogger("test_stderr_logging.quiet")
    file = io.StringIO()
    logger.handlers, logger.propagate = [logging.StreamHandler(file)], False
    logger.setLevel(logging.ERROR)
    log_beyond_stderr(logger, logging.WARNING, "stall")
    assert file.getvalue() == ""
