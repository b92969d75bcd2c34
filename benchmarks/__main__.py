"""Command line: `python -m benchmarks [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks import (
    agent_memory,
    cold,
    exporting,
    growth,
    memory,
    own_threads,
    per_call,
    readers,
    reading,
    step_time,
)
from benchmarks.machine import describe_machine
from benchmarks.report import show, show_machine, write_json
from benchmarks.sections import Section


def main() -> None:
    """Measure, print and write the results."""
    arguments = _arguments()
    _forget_settings()
    machine = describe_machine()
    show_machine(machine)
    sections = list(_sections(arguments.quick))
    for section in sections:
        show(section)
    if arguments.json:
        write_json(arguments.json, machine, sections)


def _sections(quick: bool) -> Iterator[Section]:
    yield per_call.measure(per_call.QUICK if quick else per_call.USUAL)
    after_a_layer = cold.measure(cold.QUICK if quick else cold.USUAL)
    yield after_a_layer
    yield growth.measure(growth.QUICK if quick else growth.USUAL)
    yield step_time.measure(step_time.QUICK if quick else step_time.USUAL, cold.added_us(after_a_layer))
    yield own_threads.measure(own_threads.QUICK if quick else own_threads.USUAL)
    yield memory.measure(memory.QUICK if quick else memory.USUAL)
    yield reading.measure(reading.QUICK if quick else reading.USUAL)
    yield readers.measure(readers.QUICK if quick else readers.USUAL)
    yield exporting.measure(exporting.QUICK if quick else exporting.USUAL)
    yield agent_memory.measure(agent_memory.QUICK if quick else agent_memory.USUAL)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What otel_torchdist costs.")
    parser.add_argument("--quick", action="store_true", help="a few rounds, which show that it works and little else")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    arguments = parser.parse_args()
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no such directory")
    return arguments


def _forget_settings() -> None:
    """Drop the developer's OpenTelemetry settings: they would change the measurements, here and in every process."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]


if __name__ == "__main__":
    main()
