"""Advises whether to drain a machine, or to leave it out of the job's next start, and counts incidents by machine."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from otel_torchdist.judge.stall.attributes import MAX_LISTED
from otel_torchdist.model.reports.verdict_kinds import MachineBlame, VerdictKind
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.directory import private_directory
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import remove, replace_at_once
from otel_torchdist.telemetry import semconv

INCIDENTS_TO_EXCLUDE: Final = 2
MAX_HOST: Final = 255
MAX_REASON: Final = 1_000


class NodeAction(enum.Enum):
    """What should be done with the machines that a verdict blames. The value is the word in JSON."""

    NONE = "none"
    EXCLUDE = "exclude"
    """Leave them out of the job's next start: nothing of the machine shows the fault, but it was not the first one."""
    DRAIN = "drain"
    """Give them no more jobs: evidence of the machine shows the fault."""


@dataclass(frozen=True, slots=True)
class MachineAdvice:
    """The advice on the machines that a verdict blames.

    Attributes:
        reason: Why, in one line.
        hosts: Host names of these machines; empty if no machine is blamed.
        incidents: Runs that have blamed the machine in the last days, as counted so far; 0 if they are not counted.
    """

    action: NodeAction
    reason: str
    hosts: tuple[str, ...] = ()
    incidents: int = 0


NO_MACHINE: Final = MachineAdvice(NodeAction.NONE, "no machine is blamed")


def advise(attributes: Mapping[str, object], incidents: Incidents | None = None) -> MachineAdvice:
    """Return the advice on a verdict.

    Args:
        attributes: The verdict as span attributes, which the agent of another node may have sent.
        incidents: The incidents that have been counted; None if they are not.
    """
    name = attributes.get(semconv.VERDICT)
    kind = next((kind for kind in VerdictKind if kind.value == name), None)
    hosts = _hosts(attributes.get(semconv.MACHINE_HOSTS))
    if kind is None or kind.traits.machine is MachineBlame.NEVER or not hosts:
        return NO_MACHINE
    reason = readable(f"{name}: {attributes.get(semconv.MACHINE_REASON, '')}", MAX_REASON)
    counted = incidents.count(hosts[0]) if incidents is not None and len(hosts) == 1 else 0
    if attributes.get(semconv.MACHINE_FAULT) == "shown":
        return MachineAdvice(NodeAction.DRAIN, reason, hosts, counted)
    if incidents is None or len(hosts) != 1:
        return MachineAdvice(NodeAction.NONE, f"{reason}; incidents are not counted", hosts)
    what = f"{reason}; incident {counted} in {incidents.days} days"
    action = NodeAction.EXCLUDE if counted >= INCIDENTS_TO_EXCLUDE else NodeAction.NONE
    return MachineAdvice(action, what, hosts, counted)


def _hosts(value: object) -> tuple[str, ...]:
    """Return the host names in an attribute; another agent may have sent anything."""
    entries = cast(Sequence[object], value)[:MAX_LISTED] if isinstance(value, list | tuple) else ()
    return tuple(
        entry for entry in entries if isinstance(entry, str) and 0 < len(entry) <= MAX_HOST and entry == readable(entry)
    )


# --- incidents --------------------------------------------------------------------------------------------------------
# A directory that outlives the job and that all nodes share. Each incident is a file of its own, which appears at once,
# so that agents of different jobs need no lock. Incidents of one run count once: its first fault may cause others.


MAX_KEPT: Final = 64
"""Maximum files of one machine; the oldest are removed."""
_MAX_BYTES: Final = 4_096
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


class Incidents:
    """The incidents of machines, in a directory."""

    def __init__(self, directory: Path, days: int) -> None:
        """Use a directory, which is created when the first incident is added.

        Args:
            directory: The directory.
            days: Age in days after which incidents no longer count.
        """
        self.days = days
        self._directory = directory

    def add(self, host: str, run: str, trace_id: str, verdict: str) -> None:
        """Add an incident of a machine; again if it is already known, without effect.

        Raises:
            OSError: The file cannot be written.
            TapeError: The directory does not belong to this user.
        """
        folder = self._folder(host)
        private_directory(self._directory)
        folder.mkdir(mode=0o700, exist_ok=True)
        record = {"host": host, "run": run, "trace_id": trace_id, "verdict": verdict, "at": round(time.time())}
        hidden = folder / f".{trace_id}.{os.getpid()}.new"
        replace_at_once(folder / f"{trace_id}.json", hidden, json.dumps(record).encode())
        self._remove_old(folder)

    def count(self, host: str) -> int:
        """Return the number of runs with an incident of the machine in the last days."""
        since = time.time() - self.days * 86_400
        runs: set[str] = set()
        for file in self._files(self._folder(host))[:MAX_KEPT]:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                record = json.loads(read_regular(file, _MAX_BYTES, os.geteuid()))
                if record["host"] == host and since <= float(record["at"]) <= time.time() + 86_400:
                    runs.add(str(record["run"]))
        return len(runs)

    def _folder(self, host: str) -> Path:
        """Return the folder of a machine. Names that are no plain file names are replaced by a digest."""
        return self._directory / (host if _PLAIN.fullmatch(host) else hashlib.sha256(host.encode()).hexdigest())

    def _files(self, folder: Path) -> list[Path]:
        """Return the files of a machine, the newest first."""
        dated: list[tuple[float, str]] = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another agent has just removed it
                    dated.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        return [folder / name for _, name in sorted(dated, reverse=True) if not name.startswith(".")]

    def _remove_old(self, folder: Path) -> None:
        for file in self._files(folder)[MAX_KEPT:]:
            with contextlib.suppress(OSError):
                remove(file)
