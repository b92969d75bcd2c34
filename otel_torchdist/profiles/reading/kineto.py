"""Decodes a trace of PyTorch's profiler, in Kineto's format."""

from __future__ import annotations

import re
from typing import Final

from otel_torchdist.naming import readable
from otel_torchdist.profiles.profile import DecodedTrace, RankProfile, TraceKind
from otel_torchdist.profiles.reading.device_calls import device_calls, groups_beside
from otel_torchdist.profiles.reading.document import ABSENT, TraceDocument, TraceError, decoded, items_of
from otel_torchdist.profiles.reading.events import TraceEvents, events_of
from otel_torchdist.profiles.reading.groups import MAX_NAME, configured_groups, distributed_info
from otel_torchdist.profiles.reading.host_calls import host_calls
from otel_torchdist.profiles.reading.moments import StepMoments
from otel_torchdist.tape.layout import MAX_TIME_NS

_DEFAULT_NAME: Final = re.compile(r"(.{1,128})_(\d{1,10})\.\d{1,20}\.pt\.trace\.json(?:\.gz)?")
"""What `tensorboard_trace_handler` calls a file unless it is given a name: host and process."""
_NO_HOST: Final = ("localhost", "")


def decode_profile(document: TraceDocument, name: str, path: str, rank: int | None) -> DecodedTrace:
    """Decode a trace.

    Args:
        document: Its parts.
        name: The file's own name.
        path: Where it was read, for reports.
        rank: The rank that the name states; None if it states none.

    Raises:
        TraceError: It does not show of which rank it is.
    """
    base_ns = decoded(document.baseTimeNanoseconds, int, 0)
    events = events_of(items_of(document.traceEvents), base_ns if 0 <= base_ns <= MAX_TIME_NS else 0)
    info = distributed_info(document.distributedInfo)
    is_of_torch = document.schemaVersion is not ABSENT or document.deviceProperties is not ABSENT
    if not is_of_torch and document.distributedInfo is ABSENT and not (events.records or events.operators):
        raise TraceError("it is a trace that PyTorch's profiler has not written")
    own = info.rank if info.rank >= 0 else rank
    if own is None:
        raise TraceError("neither its name nor its `distributedInfo` states a rank")
    moments = StepMoments(events)
    calls = sorted(device_calls(events, moments), key=lambda call: call.entered_ns)
    calls = calls or list(host_calls(events, moments))
    groups = {group: None for group in (*configured_groups(info.pg_config), *groups_beside(events))}
    newest_ns = max([*(call.returned_ns for call in calls), *(step.ended_ns for step in moments.steps)], default=0)
    profile = RankProfile(
        kind=TraceKind.PROFILER,
        rank=own,
        path=path,
        world_size=info.world_size,
        host=_host_of(document, name, events),
        process=events.process,
        newest_ns=newest_ns,
        groups=tuple(groups),
        steps=moments.steps,
        calls=tuple(calls),
    )
    return DecodedTrace(profile, events.bad, events.first_fault)


def _host_of(document: TraceDocument, name: str, events: TraceEvents) -> str:
    """The host, from the trace (2025 and later), or from a name that states the process of the trace as well."""
    host = decoded(document.host_name, str, "")
    found = _DEFAULT_NAME.fullmatch(name)
    if not host and found is not None and int(found[2]) == events.process:
        host = found[1]
    return "" if host in _NO_HOST else readable(host, MAX_NAME)
