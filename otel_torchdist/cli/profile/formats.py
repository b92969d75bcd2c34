"""A profile as tools read it: folded stacks for flame graphs, and speedscope's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

from otel_torchdist.cli.profile.taking import Sampled, Taken
from otel_torchdist.model.names import CallSiteName

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def folded(taken: Taken) -> Iterator[str]:
    """Yield a line for each stack: frames from the outside in, separated by semicolons, and how often it was seen."""
    for sampled, count in sorted(taken.samples.items(), key=lambda one: (one[0].thread, -one[1])):
        yield f"{';'.join(_clean(part) for part in _frames(sampled))} {count}"


def _frames(sampled: Sampled) -> list[str]:
    """Thread, frames and operation, from the outside in."""
    frames = [f"{frame.function} ({PurePath(frame.file).name}:{frame.line})" for frame in reversed(sampled.stack)]
    return [sampled.thread, *frames, *([f"[{sampled.operation}]"] if sampled.operation else [])]


def _clean(part: str) -> str:
    return part.replace(";", ",").replace("\n", " ")


def speedscope(taken: Taken, name: str) -> dict[str, Any]:
    """Return a document of speedscope, with a profile for each thread, in seconds."""
    frames: dict[CallSiteName | str, int] = {}
    threads: dict[str, tuple[list[list[int]], list[float]]] = {}
    one_s = taken.seconds / max(taken.count - 1, 1)
    for sampled, count in taken.samples.items():
        inward: list[CallSiteName | str] = [*reversed(sampled.stack)]
        inward += [f"[{sampled.operation}]"] if sampled.operation else []
        samples, weights = threads.setdefault(sampled.thread, ([], []))
        samples.append([frames.setdefault(frame, len(frames)) for frame in inward])
        weights.append(round(count * one_s, 6))
    return {
        "$schema": _SCHEMA,
        "name": name,
        "exporter": "otel-torchdist",
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": thread,
                "unit": "seconds",
                "startValue": 0,
                "endValue": round(sum(weights), 6),
                "samples": samples,
                "weights": weights,
            }
            for thread, (samples, weights) in threads.items()
        ],
    }


def _frame(frame: CallSiteName | str) -> dict[str, Any]:
    if isinstance(frame, str):
        return {"name": frame}
    return {"name": frame.function, "file": frame.file, "line": frame.line}
