"""The two files that a bundle of evidence adds to the copy of a job directory.

`bundle.json` says where the copy comes from, and `moment.json` what only the live processes could show: which ranks
were running, and which of them did not move. With both, a reader judges the copy as of its own moment, on any machine,
and never asks this machine about a process: the pids in a copy may be anyone's here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from otel_torchdist.formats import BUNDLE
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.lives import STOPPED_STATES, Stopped
from otel_torchdist.model.rank_state.occupations import ChildWait
from otel_torchdist.model.text import readable
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.tape.layout import MAX_TIME_NS
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

FORMAT: Final = BUNDLE.number
PREFIX: Final = "torchdist-bundle-"
SUFFIX: Final = ".tar.gz"
"""Start and end of the names of bundles."""
MANIFEST_NAME: Final = "bundle.json"
MOMENT_NAME: Final = "moment.json"
PLACE_NAME: Final = "unpacked-from"
"""Holds the path of the bundle that a command has unpacked; such a copy is gone when the command ends."""
MAX_TEXT: Final = 4096
MAX_BYTES: Final = 4 << 20
"""Bytes of `moment.json`; 1,024 ranks take 100 KiB."""

_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_Time = Annotated[int, Meta(ge=0, le=MAX_TIME_NS)]


class BundleReason(enum.Enum):
    """The occasion on which a bundle is written."""

    VERDICT = "verdict"
    """The first verdict on an incident: a stall, or the death of a rank."""
    END = "end"
    """All ranks on the node have ended."""
    AGENT_ENDS = "agent_ends"
    """The agent is asked to end while ranks run."""
    DUMP = "dump"
    """The action `dump`."""


class _AnyManifest(msgspec.Struct, frozen=True):
    """The part of `bundle.json` that is the same in every format of bundles. It is the first file of every bundle."""

    format: Annotated[int, Meta(ge=1, le=1 << 20)]
    version: _Text = ""


class BundleManifest(msgspec.Struct, frozen=True):
    """The origin of a bundle.

    Attributes:
        format: Version of the bundle's layout. The tapes in it have versions of their own.
        run: Id of the run, 32 hex digits.
        host: Host name of the node.
        reason: Value of a `BundleReason`.
        verdict: Kind of the verdict; '' without one.
        trace_id: Trace id of the incident, 32 hex digits; '' without one.
        written_ns: Wall clock time in nanoseconds at which the copy began.
        records: Number of newest records kept of each tape; None for all.
        version: Version of otel-torchdist.
        torch: Version of torch; '' if unknown.
    """

    format: Annotated[int, Meta(ge=1, le=1 << 20)]
    run: _Text
    host: _Text
    reason: _Text
    verdict: _Text = ""
    trace_id: _Text = ""
    written_ns: _Time = 0
    records: Annotated[int, Meta(ge=0, le=1 << 32)] | None = None
    version: _Text = ""
    torch: _Text = ""


class RunningRank(msgspec.Struct, frozen=True):
    """A rank that was running when its tape was copied.

    Attributes:
        nonce: Name of its tape, 16 hex digits.
        stopped: State letter if its process did not run, see `STOPPED_STATES`; '' otherwise.
        stopped_since_ns: Monotonic time at which that state was first seen.
        ran_ns: Monotonic time at which the kernel last showed it running without a heartbeat; 0 for never.
        child: The child process that it waited for; None if there is none.
    """

    nonce: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    stopped: Annotated[str, Meta(max_length=1)] = ""
    stopped_since_ns: _Time = 0
    ran_ns: _Time = 0
    child: ChildWait | None = None

    @property
    def not_running(self) -> Stopped | None:
        """Why its process did not run; None if it ran."""
        return Stopped(self.stopped, self.stopped_since_ns) if self.stopped in STOPPED_STATES else None


class BundledMoment(msgspec.Struct, frozen=True):
    """The state of the processes when their tapes were copied.

    Attributes:
        taken_ns: Monotonic time of the node after the copy.
        running: The ranks that were running.
        changed_ns: Modification times of files, by name: a stack counts only if it is newer than the last record.
    """

    taken_ns: _Time
    running: tuple[RunningRank, ...]
    changed_ns: dict[_Text, _Time] = msgspec.field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class BundledCopy:
    """A job directory that is the content of a bundle.

    Attributes:
        manifest: Its origin.
        taken_ns: Monotonic time of its node at which it was copied.
        running: Ranks that were running then, by the nonce of their tape.
        place: Path of the bundle if a command has unpacked it; '' for a copy unpacked by hand.
    """

    manifest: BundleManifest
    taken_ns: int
    running: dict[int, RunningRank]
    place: str


def read_copy(directory: Path) -> BundledCopy | None:
    """Return what a bundle says about this job directory; None for a live job directory, or a damaged bundle.

    Raises:
        OtherFormatError: The bundle has another format.
    """
    try:
        manifest = decode_manifest(read_regular(directory / MANIFEST_NAME, MAX_BYTES), str(directory))
        moment = decode_json(read_regular(directory / MOMENT_NAME, MAX_BYTES), BundledMoment)
    except (OSError, DecodingError):
        return None
    return BundledCopy(
        manifest, moment.taken_ns, {int(rank.nonce, 16): _displayable(rank) for rank in moment.running},
        _place_of(directory),
    )  # fmt: skip


def decode_manifest(content: bytes, where: str) -> BundleManifest:
    """Decode `bundle.json`; its texts can be displayed.

    Args:
        content: The file.
        where: Path of the bundle, for the error.

    Raises:
        OtherFormatError: The bundle has another format.
        DecodingError: It is not a manifest.
    """
    known = decode_json(content, _AnyManifest)
    BUNDLE.check(known.format, where, readable(known.version, MAX_TEXT))
    manifest = decode_json(content, BundleManifest)
    texts = {name: readable(getattr(manifest, name), MAX_TEXT) for name in ("run", "host", "reason", "verdict")}
    return msgspec.structs.replace(manifest, **texts)


def _displayable(rank: RunningRank) -> RunningRank:
    child = rank.child
    if child is None:
        return rank
    holder = child.holder
    if holder is not None:
        holder = CallSiteName(readable(holder.function), readable(holder.file), holder.line, readable(holder.through))
    shown = replace(child, name=readable(child.name), doing=readable(child.doing), holder=holder)
    return msgspec.structs.replace(rank, child=shown)


def _place_of(directory: Path) -> str:
    try:
        return readable(read_regular(directory / PLACE_NAME, MAX_TEXT).decode("utf-8", "replace"), MAX_TEXT)
    except OSError:
        return ""
