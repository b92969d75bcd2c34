"""How far the agent of a job directory has come, on disk: the next agent goes on from there.

Written before spans leave: an agent that is killed loses what it had not sent yet, and nobody sends a span id twice.
What it counted is exact, because the records since the last checkpoint are read again.
"""

from __future__ import annotations

import importlib.metadata
import io
import logging
import os
import pickle
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from otel_torchdist.agent.reader import RankState
from otel_torchdist.tape.layout import Flag, How, RecordKind
from otel_torchdist.tape.owned_files import replace_at_once
from otel_torchdist.tape.reader import TapeCursor
from otel_torchdist.tape.records import Operation, StepMark
from otel_torchdist.telemetry.durations import DurationHistogram, TimedMessages
from otel_torchdist.telemetry.exemplars import Exemplar
from otel_torchdist.telemetry.metric_pictures import GroupInfo
from otel_torchdist.telemetry.metrics_state import GroupState, MetricsState, SeriesState
from otel_torchdist.telemetry.sampling import SamplerState
from otel_torchdist.telemetry.segments import CutterState
from otel_torchdist.telemetry.spans import SpansState

FILE_NAME: Final = "agent.checkpoint"

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one agent leaves to the next.

    Attributes:
        ranks: By the nonce of their tapes.
        done: Nonces of tapes that were read to their ends and are not shown any more.
    """

    ranks: dict[int, RankState] = field(default_factory=dict[int, RankState])
    done: frozenset[int] = frozenset()


_TYPES: Final[tuple[type, ...]] = (
    *(Checkpoint, RankState, TapeCursor, Operation, StepMark, Flag, How, RecordKind),
    *(SpansState, CutterState, SamplerState),
    *(MetricsState, SeriesState, GroupState, GroupInfo, DurationHistogram, TimedMessages, Exemplar),
    frozenset,
)
_KNOWN: Final = {(known.__module__, known.__qualname__): known for known in _TYPES}


class _KnownTypesOnly(pickle.Unpickler):
    """Makes nothing but the values above: whoever could write the file must not get to run code."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        found = _KNOWN.get((module_name, global_name))
        if found is None:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} does not belong there")
        return found


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint of a job directory.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    content = _version() + pickle.dumps(checkpoint, protocol=5)
    sealed = zlib.crc32(content).to_bytes(4, "little") + content
    replace_at_once(directory / FILE_NAME, directory / f".{FILE_NAME}.new", sealed)


def load(directory: Path) -> Checkpoint:
    """The checkpoint of a job directory; an empty one where there is none, or, with a warning, where it is damaged."""
    path = directory / FILE_NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(file, "rb") as stream:
            found = stream.read()
    except FileNotFoundError:
        return Checkpoint()
    except OSError as error:
        return _without(path, str(error))
    checksum, content = found[:4], found[4:]
    if zlib.crc32(content).to_bytes(4, "little") != checksum:
        return _without(path, "its checksum is wrong")
    if not content.startswith(_version()):
        return _without(path, "another version of otel_torchdist has written it")
    try:
        checkpoint = _KnownTypesOnly(io.BytesIO(content[len(_version()) :])).load()
    except Exception as error:  # whatever damaged content may lead to
        return _without(path, str(error))
    return checkpoint if isinstance(checkpoint, Checkpoint) else _without(path, "it holds something else")


def _without(path: Path, why: str) -> Checkpoint:
    _logger.warning("%s cannot be used (%s): the tapes are read from their oldest records on", path, why)
    return Checkpoint()


def _version() -> bytes:
    return f"otel-torchdist {importlib.metadata.version('otel-torchdist')}\n".encode()
