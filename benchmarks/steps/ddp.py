"""Measures waits for the GIL in DDP's backward, beside a thread that computes in Python.

DDP's reducer issues its collectives from C++. Code that needs the GIL there, such as a Python kernel or torch's flight
recorder, waits until the computing thread releases the GIL: up to Python's switch interval of 5 ms.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.forks import forked
from benchmarks.native_library import MISSING, library_folder, native_cache
from benchmarks.results.recorded import require_equal
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from benchmarks.steps.ddp_turn import BUCKETS, Backwards, Recorder, Turn
from benchmarks.steps.training import Switch, switches_with

SWITCH_INTERVAL_MS: Final = 5.0

NOTES: Final = (
    f"Backward of {BUCKETS} layers, one bucket each, on gloo with one rank; the other thread counts in Python without "
    "a pause. Off, each kernel, and off again take turns in the same process, of which there is one for each state of "
    "torch's flight recorder (off: TORCH_FR_BUFFER_SIZE=0). Means of a turn's backwards, then medians of rounds ± half "
    "of the range between the quartiles.",
    "Noise: the larger of two medians of rounds: of the distance between two turns without us, and of twice the "
    "standard error of what the native kernel adds. Where it is more than one switch interval (5 ms), nothing is "
    "decided.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        rounds: Rounds for each state of the flight recorder; in each, every switch has a turn.
        budget_s: Seconds for each state after which no further round begins.
        warm_up: Backward passes at the start of a turn.
        backwards: Timed backward passes per turn.
    """

    rounds: int
    budget_s: float
    warm_up: int
    backwards: int


USUAL: Final = Extent(rounds=25, budget_s=40.0, warm_up=3, backwards=20)
QUICK: Final = Extent(rounds=2, budget_s=5.0, warm_up=1, backwards=1)


def measure(extent: Extent) -> Section:
    """Time backward passes with and without recording, with torch's flight recorder off and on.

    Raises:
        RuntimeError: A collective was not recorded, the flight recorder had the wrong state, or the number of buckets
            was wrong.
    """
    cache = native_cache()
    library = library_folder(cache) if cache is not None else None
    rounds = {recorder: _measure(recorder, extent, library) for recorder in Recorder}
    return _section(rounds, extent, [] if library is not None else [MISSING])


def _measure(recorder: Recorder, extent: Extent, library: Path | None) -> list[dict[Switch, float]]:
    switches = switches_with(library)
    rounds: list[dict[Switch, float]] = []
    with ExitStack() as stack:
        tapes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        [rank] = stack.enter_context(forked(_serve, [(recorder, tapes, library)]))
        deadline = time.monotonic() + extent.budget_s
        while len(rounds) < 2 or (len(rounds) < extent.rounds and time.monotonic() < deadline):
            first = len(rounds) % len(switches)
            answers: dict[Switch, Backwards] = {}
            for switch in switches[first:] + switches[:first]:
                rank.send(Turn(switch, extent.warm_up, extent.backwards))
                answers[switch] = rank.recv()
                _check(answers[switch], switch, recorder, extent)
            rounds.append({switch: mean(answer.ms) for switch, answer in answers.items()})
    return rounds


def _serve(connection: Connection, recorder: Recorder, tapes: Path, library: Path | None) -> None:
    # Only the forked processes need torch, and the process that they are forked from has imported it.
    from benchmarks.steps.ddp_rank import serve

    serve(connection, recorder, tapes, library)


def _check(answer: Backwards, switch: Switch, recorder: Recorder, extent: Extent) -> None:
    made = BUCKETS * (extent.warm_up + extent.backwards)
    require_equal(made, answer.issued, "buckets were reduced")
    require_equal(made if switch.is_recorded else 0, answer.recorded, "collectives were recorded")
    require_equal(recorder is Recorder.ON, answer.has_recorder, "is whether torch's flight recorder has entries")


def _section(
    rounds: Mapping[Recorder, Sequence[Mapping[Switch, float]]], extent: Extent, notes: Sequence[str]
) -> Section:
    added = {recorder: _added(of) for recorder, of in rounds.items()}
    switches = list(rounds[Recorder.OFF][0])
    return Section(
        key="ddp",
        title="DDP's backward beside a computing thread, in ms; what is added to it",
        columns=["torch's flight recorder", "bare", *(switch.value for switch in switches[1:])],
        rows=[[recorder.value, *(f"{of[switch]:.2f}" for switch in switches)] for recorder, of in added.items()],
        notes=[*NOTES, *notes],
        goals=[goal for recorder, of in rounds.items() for goal in _goals(recorder, of)],
        data={
            "unit": "ms",
            **asdict(extent),
            "recorders": {
                recorder.name.lower(): {
                    "noise": _noise(of),
                    "added": {switch.value: asdict(spread) for switch, spread in added[recorder].items()},
                    "rounds": [{switch.value: ms for switch, ms in one.items()} for one in of],
                }
                for recorder, of in rounds.items()
            },
        },
    )


def _added(rounds: Sequence[Mapping[Switch, float]]) -> dict[Switch, Spread]:
    """Return the time that each switch adds to an unrecorded pass of the same round; for `OFF` the time of the pass."""
    bare = Spread.of([one[Switch.OFF] for one in rounds])
    others = [switch for switch in rounds[0] if switch is not Switch.OFF]
    return {Switch.OFF: bare} | {
        switch: Spread.of([one[switch] - one[Switch.OFF] for one in rounds]) for switch in others
    }


def _noise(rounds: Sequence[Mapping[Switch, float]]) -> float:
    between_bare = Spread.of([abs(one[Switch.OFF_AGAIN] - one[Switch.OFF]) for one in rounds]).median
    added = _added(rounds)
    return max(between_bare, added[Switch.NATIVE].blur(len(rounds)) if Switch.NATIVE in added else 0.0)


def _goals(recorder: Recorder, rounds: Sequence[Mapping[Switch, float]]) -> list[Goal]:
    added = _added(rounds)
    if Switch.NATIVE not in added:
        return []
    noise = round(_noise(rounds), 3)
    text = f"native kernel, added to a backward with the flight recorder {recorder.value}, within noise"
    return [Goal(text, added[Switch.NATIVE].median, noise, "ms", is_decided=noise <= SWITCH_INTERVAL_MS)]
