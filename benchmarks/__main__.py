"""Command line: `python -m benchmarks [--quick] [--only SECTIONS] [--json FILE]`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.calls import cold, growth, per_call
from benchmarks.calls.orders import Variant
from benchmarks.parts import parts
from benchmarks.programs import memory, own_threads, small_collectives, start
from benchmarks.readers import agent_memory, exporting, readers, reading
from benchmarks.results.machine import describe_machine
from benchmarks.results.report import show, show_machine, write_json
from benchmarks.results.sections import Section
from benchmarks.steps import ddp, numerics, numerics_steps, step_time
from benchmarks.steps.training import Switch

Done: TypeAlias = Mapping[str, Section]
"""Measured sections, by name."""


def _step_time(quick: bool, done: Done) -> Section:
    """Measure steps, and predict their slowdown from the cost of calls after a layer, if that was measured."""
    return step_time.measure(step_time.QUICK if quick else step_time.USUAL, _call_us(done))


def _parts(quick: bool, done: Done) -> Section:
    """Measure the parts of recording, and predict the slowdown of steps, if their composition was measured."""
    steps = parts.whole_steps(done["step_time"], _call_us(done)) if "step_time" in done else {}
    model = (step_time.QUICK if quick else step_time.USUAL).model
    return parts.measure(parts.QUICK if quick else parts.USUAL, model, steps)


def _call_us(done: Done) -> dict[Switch, float | None]:
    after_a_layer = done.get("cold")
    costs = {Switch.PYTHON: Variant.PYTHON, Switch.NATIVE: Variant.NATIVE}
    return {
        switch: cold.added_us(after_a_layer, variant) if after_a_layer is not None else None
        for switch, variant in costs.items()
    }


SECTIONS: Final[Mapping[str, Callable[[bool, Done], Section]]] = {
    "start": lambda quick, _: start.measure(start.QUICK if quick else start.USUAL),
    "per_call": lambda quick, _: per_call.measure(per_call.QUICK if quick else per_call.USUAL),
    "cold": lambda quick, _: cold.measure(cold.QUICK if quick else cold.USUAL),
    "growth": lambda quick, _: growth.measure(growth.QUICK if quick else growth.USUAL),
    "step_time": _step_time,
    "parts": _parts,
    "ddp": lambda quick, _: ddp.measure(ddp.QUICK if quick else ddp.USUAL),
    "small_collectives": lambda quick, _: small_collectives.measure(
        small_collectives.QUICK if quick else small_collectives.USUAL
    ),
    "numerics": lambda quick, _: numerics.measure(numerics.QUICK if quick else numerics.USUAL),
    "numerics_steps": lambda quick, _: numerics_steps.measure(numerics_steps.QUICK if quick else numerics_steps.USUAL),
    "own_threads": lambda quick, _: own_threads.measure(own_threads.QUICK if quick else own_threads.USUAL),
    "memory": lambda quick, _: memory.measure(memory.QUICK if quick else memory.USUAL),
    "reading": lambda quick, _: reading.measure(reading.QUICK if quick else reading.USUAL),
    "readers": lambda quick, _: readers.measure(readers.QUICK if quick else readers.USUAL),
    "exporting": lambda quick, _: exporting.measure(exporting.QUICK if quick else exporting.USUAL),
    "agent_memory": lambda quick, _: agent_memory.measure(agent_memory.QUICK if quick else agent_memory.USUAL),
}
"""The benchmarks, in the order in which they run."""


def main() -> int:
    """Measure, print and write the results; return 1 if a section failed. A failure does not affect other sections."""
    arguments = _arguments()
    _forget_settings()
    machine = describe_machine()
    show_machine(machine)
    done: dict[str, Section] = {}
    failed: list[str] = []
    for name in arguments.only:
        began_s = time.monotonic()
        try:
            done[name] = SECTIONS[name](arguments.quick, done)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        show(done[name])
        print(f"  ({name}: {time.monotonic() - began_s:.0f} s)", flush=True)
        if arguments.json:  # written after each section, so that a later failure loses nothing
            write_json(arguments.json, machine, list(done.values()))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the costs of otel_torchdist.")
    parser.add_argument("--quick", action="store_true", help="run only a few rounds, to check that the benchmarks work")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(SECTIONS),
        metavar="SECTIONS",
        help=f"run only these sections, separated by commas: {', '.join(SECTIONS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.only if name not in SECTIONS]:
        parser.error(f"--only {','.join(unknown)}: the sections are {', '.join(SECTIONS)}")
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no such directory")
    arguments.only = [name for name in SECTIONS if name in arguments.only]
    return arguments


def _forget_settings() -> None:
    """Remove the developer's OpenTelemetry settings, which would change the measurements in all processes."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]


if __name__ == "__main__":
    sys.exit(main())
