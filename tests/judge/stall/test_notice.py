"""The notice on a job's standard error: when it is written, and its lines."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from opentelemetry.sdk._logs import LoggerProvider

from otel_torchdist.judge.stall.events import Occasion, VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import notice_lines
from otel_torchdist.judge.stall.reporting.reporter import StallReporter
from otel_torchdist.system.this_process.stderr_logging import LevelFormatter
from tests.judge.stall.test_reporter import Elsewhere
from tests.support.receivers.memory_sink import MemorySink
from tests.support.worlds.detectors import Watching, stalled

RUN = 0x28DFDD1A << 96
PIPE_BUF = 4096


class Announcements:
    """An announcer that collects sentences.

    Attributes:
        texts: The sentences.
        is_announcing: See `Announcer`.
    """

    is_announcing = False

    def __init__(self, succeeds: bool) -> None:
        self.texts: list[str] = []
        self._succeeds = succeeds

    def announce(self, event: VerdictGiven, text: str) -> bool:
        """Collect the sentence, or fail."""
        self.texts.append(text)
        return self._succeeds


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the levels of the records on the stall in an agent's log."""
    formatter = LevelFormatter("%(levelname)s %(message)s")
    found = [formatter.format(record) for record in caplog.records]
    return [line.split()[0] for line in found if " stall: " in line]


@pytest.mark.parametrize("succeeds", [True, False])
def test_only_the_first_verdict_is_announced(caplog: pytest.LogCaptureFixture, succeeds: bool) -> None:
    """A stall is announced once. All verdicts are logged, the announced one at its own level."""
    watching = Watching(stalled()[0]).until(60.0)
    occasions = [event.occasion for _, event in watching.verdicts]
    assert occasions == [Occasion.OPENED, Occasion.GROWN, Occasion.GROWN]
    announced = Announcements(succeeds)
    events = LoggerProvider(shutdown_on_exit=False).get_logger("otel_torchdist")
    reporter = StallReporter(MemorySink(), events, Elsewhere(), announced)
    with caplog.at_level(logging.INFO):
        reporter.report(event for _, event in watching.events)
    [text] = announced.texts
    assert text.startswith("rank 2 has not entered all_reduce")
    assert levels(caplog) == ["ANNOUNCED" if succeeds else "WARNING", "WARNING", "WARNING"]


@pytest.mark.parametrize(
    ("docs_url", "end"), [("", r"\)"), ("https://docs.example", r", see https://docs\.example/verdicts/absent\)")]
)
def test_link_in_the_log(caplog: pytest.LogCaptureFixture, docs_url: str, end: str) -> None:
    """The log line of a verdict links to the page on its kind if an address is configured."""
    watching = Watching(stalled()[0]).until(20.0)
    events = LoggerProvider(shutdown_on_exit=False).get_logger("otel_torchdist")
    reporter = StallReporter(MemorySink(), events, Elsewhere(), docs_url=docs_url)
    with caplog.at_level(logging.INFO):
        reporter.report(event for _, event in watching.events)
    messages = [record.getMessage() for record in caplog.records if record.getMessage().startswith("stall: ")]
    assert messages
    assert all(re.search(rf"\(run [0-9a-f]{{8}}, trace [0-9a-f]{{32}}{end}$", message) for message in messages)


def test_lines() -> None:
    """The sentence, and a command that can be pasted into a shell."""
    assert notice_lines("rank 2 is late", RUN, Path("/dev/shm/my jobs/job-1")) == [
        "otel_torchdist: rank 2 is late",
        "otel_torchdist: details: otel-torchdist diagnose 28dfdd1a --run-dir '/dev/shm/my jobs/job-1'",
    ]
    [_, command] = notice_lines("rank 2 is late", 0, Path("/dev/shm/job-1"), "node-7")
    assert command == "otel_torchdist: details: otel-torchdist diagnose --run-dir /dev/shm/job-1 (on node-7)"


def test_forged_texts() -> None:
    """Names from a program cannot move the cursor or start a line. The longest notice fits into one pipe write."""
    lines = notice_lines("rank\x1b[2J 2\nroot: all is well\r", RUN, Path("/dev/shm/job-1"))
    assert lines[0] == "otel_torchdist: rank\\x1b[2J 2\\nroot: all is well\\r"
    longest = notice_lines("é" * 9_999, RUN, Path("/" + "x" * 9_999), "h" * 999)
    assert PIPE_BUF // 2 < sum(len(f"{line}\n".encode()) for line in longest) <= PIPE_BUF
