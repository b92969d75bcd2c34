"""Observes the demo's job from outside: its `/metrics` during the stall, and its agent."""

from __future__ import annotations

import http.client
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_torchdist.agent.log_relay import LOG_NAME, LogTail, pass_on
from otel_torchdist.files.locks import is_file_locked
from otel_torchdist.job.directory import LOCK_NAME
from otel_torchdist.serving.scrape_target import ScrapeTarget
from otel_torchdist.telemetry.metrics.definitions.operations import LAST_STARTED_SEQUENCE, OLDEST_AGE
from otel_torchdist.telemetry.metrics.definitions.stalls import STALL_INFO, STALLED

_TIMEOUT_S: Final = 2.0
_SERIES: Final = 4
"""Series shown of each metric."""
_SHOWN: Final = (STALLED.name, STALL_INFO.name, OLDEST_AGE.name, LAST_STARTED_SEQUENCE.name)


def scrape(target: str, operation: str) -> list[str]:
    """Return a short sample of `/metrics`, what a stall of `operation` changes; empty if there is no response."""
    connection = http.client.HTTPConnection(target, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()
    others = 'operation="'
    wanted = sorted(line for line in lines if others not in line or f'{others}{operation}"' in line)
    sample: list[str] = []
    for name in _SHOWN:
        sample += [line for line in wanted if line.startswith(f"{name}{{")][:_SERIES]
    return sample


_DROPPED: Final = re.compile(r"; (\d+) spans could not be exported$")
_OF_STALLS: Final = re.compile(r" (WARNING|ERROR) stall( over)?: ")
"""Log lines about stalls, which the demo reports itself."""
_OF_FINDINGS: Final = " WARNING finding: "
_FINDING: Final = re.compile(r"(.*) (\(run [^()]+\))$")
"""A finding that is no stall, and its run and trace."""

_logger = logging.getLogger("otel_torchdist")


class AgentSeen:
    """Follows the agent of one job directory.

    Attributes:
        target: Host and port of `/metrics`; '' as long as it is not served.
        dropped: Spans that could not be exported, once the agent is gone.
    """

    def __init__(self, directory: Path, has_page: bool, report_finding: Callable[[str, str], None]) -> None:
        """Follow an agent.

        Args:
            directory: Its job directory, which need not exist yet.
            has_page: Whether it serves a live page.
            report_finding: Called with each finding in its log that is no stall, and with its run and trace.
        """
        self.target = ""
        self._has_page = has_page
        self._report_finding = report_finding
        self.dropped = 0
        self._directory = directory
        self._tail = LogTail(directory / LOG_NAME)

    def follow(self) -> None:
        """Relay the agent's warnings, and find out where it serves `/metrics`."""
        if not self.target:
            self.target = ScrapeTarget(self._directory).last_target()
            if self.target and self._has_page:
                _logger.info("live page: http://%s/, and /metrics there", self.target)
            elif self.target:
                _logger.info("/metrics: http://%s/metrics", self.target)
        for line in self._tail.new_lines():
            if (dropped := _DROPPED.search(line)) is not None:
                self.dropped = int(dropped[1])
            if (finding := _FINDING.match(line.partition(_OF_FINDINGS)[2])) is not None:
                self._report_finding(finding[1], finding[2])
            elif not _OF_STALLS.search(line):
                pass_on(line)

    @property
    def is_there(self) -> bool:
        """Whether a process reads the tapes."""
        try:
            return is_file_locked(self._directory / LOCK_NAME)
        except OSError:
            return False
