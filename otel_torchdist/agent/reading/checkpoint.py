"""Stores the reading positions of a job directory's agent, so that the next agent continues from there.

The checkpoint is written before spans are sent: if an agent is killed, its unsent spans are lost, and no span id is
sent twice. Counts stay exact, because the next agent reads the records since the last checkpoint again.

The next agent may be of another version. It continues if both have the same number `STATE` in `formats`. A new field
with a default needs no new number; every other change to `Checkpoint`, and to the types within, does.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from otel_torchdist.agent.reading.followed_rank import ReadingState
from otel_torchdist.formats import STATE
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.directory import CHECKPOINT_NAME, list_tapes
from otel_torchdist.package import package_version
from otel_torchdist.system.files.others import is_transient, read_regular, reason
from otel_torchdist.system.files.owned import replace_at_once
from otel_torchdist.telemetry.metrics.durations import BOUNDS_S, DurationHistogram, Exemplar

MAX_BYTES: Final = 1 << 20
MAX_BYTES_OF_TAPE: Final = 256 << 10
MAX_TAPES: Final = 512
_BUCKETS: Final = len(BOUNDS_S) + 1
_VERSION: Final = package_version()
"""Looked up at import: without free file descriptors, `importlib.metadata` reports that the package is missing."""
_HEAD: Final = re.compile(rb"otel-torchdist state ([0-9]{1,9}) ([ -~]{0,64})\n")
"""The first line, in every format: the number of the format, and the version of the package that wrote it."""

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that one agent leaves to the next.

    Attributes:
        ranks: State of each rank, by the nonce of its tape.
        done: Nonces of tapes that were read to the end and are no longer shown in metrics.
    """

    ranks: dict[int, ReadingState] = field(default_factory=dict[int, ReadingState])
    done: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Histogram:
    """A `DurationHistogram` in its serialized form; trace ids are too wide for MessagePack's integers."""

    counts: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=_BUCKETS, max_length=_BUCKETS)]
    sum_s: float
    exemplars: list[tuple[Annotated[str, Meta(pattern="^[0-9a-f]{32}$")], float, float]]


def _to_plain(value: Any) -> _Histogram:
    if not isinstance(value, DurationHistogram):
        raise NotImplementedError(repr(value))
    exemplars = [
        (f"{exemplar.trace_id:032x}", exemplar.seconds, exemplar.wall_s) for exemplar in value.exemplars.values()
    ]
    return _Histogram(value.counts, value.sum_s, exemplars)


def _from_plain(wanted: type, value: Any) -> DurationHistogram:
    if wanted is not DurationHistogram:
        raise NotImplementedError(wanted)
    plain = msgspec.convert(value, _Histogram)
    histogram = DurationHistogram()
    histogram.counts, histogram.sum_s = plain.counts, plain.sum_s
    for trace_id, seconds, wall_s in plain.exemplars:
        histogram.add_exemplar(Exemplar(int(trace_id, 16), seconds, wall_s))
    return histogram


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_decoder: Final = msgspec.msgpack.Decoder(Checkpoint, dec_hook=_from_plain)
"""Creates only the types above, with fields of the declared types: another user may have written the file."""


def save(directory: Path, checkpoint: Checkpoint, owner: int | None = None) -> None:
    """Replace the checkpoint of a job directory.

    Args:
        directory: The job directory.
        checkpoint: The new checkpoint.
        owner: The user who must own the directory; None for this process's user.

    Raises:
        OSError: No space is left, the directory is gone, or a number does not fit into MessagePack's integers.
    """
    try:
        content = f"otel-torchdist state {STATE.number} {_VERSION}\n".encode() + _encoder.encode(checkpoint)
    except (OverflowError, ValueError, TypeError) as error:
        raise OSError(errno.ERANGE, str(error)) from error
    sealed = zlib.crc32(content).to_bytes(4, "little") + content
    replace_at_once(directory / CHECKPOINT_NAME, directory / f".{CHECKPOINT_NAME}.new", sealed, owner=owner)


def load(directory: Path, owner: int | None = None) -> Checkpoint | None:
    """Return the checkpoint of a job directory; an empty one if there is none, None with a warning if it is damaged.

    Args:
        directory: The job directory.
        owner: The user who must own the checkpoint; None for this process's user.

    Raises:
        OSError: It cannot be read now, but may be readable later. Continuing without it would send spans twice.
    """
    path = directory / CHECKPOINT_NAME
    try:
        most = MAX_BYTES + MAX_BYTES_OF_TAPE * min(len(list_tapes(directory)), MAX_TAPES)
        sealed = read_regular(path, most, os.geteuid() if owner is None else owner)
    except FileNotFoundError:
        return Checkpoint()
    except OSError as error:
        if is_transient(error):
            raise
        return _warn(path, reason(error))
    checksum, content = sealed[:4], sealed[4:]
    if zlib.crc32(content).to_bytes(4, "little") != checksum:
        return _warn(path, "its checksum is wrong")
    head = _HEAD.match(content)
    if head is None:
        return _warn(path, "it does not begin with the version that wrote it")
    if int(head[1]) != STATE.number:
        written_by = f"{STATE.name} {int(head[1])}, of otel-torchdist {head[2].decode()}"
        return _warn(path, f"{written_by}; this is otel-torchdist {_VERSION}, which reads {STATE.name} {STATE.number}")
    try:
        return _decoder.decode(memoryview(content)[head.end() :])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return _warn(path, readable(str(error), 200))


def _warn(path: Path, why: str) -> None:
    _logger.warning("%s cannot be used (%s): the tapes are read from their oldest records", path, why)
