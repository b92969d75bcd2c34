"""Command line: `python -m benchmarks [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from benchmarks import growth, memory, own_threads, per_call, reading, step_time
from benchmarks.machine import describe_machine
from benchmarks.report import show, show_machine, write_json
from benchmarks.sections import Section

SECTIONS: tuple[Callable[[bool], Section], ...] = (
    lambda quick: per_call.measure(per_call.QUICK if quick else per_call.USUAL),
    lambda quick: growth.measure(growth.QUICK if quick else growth.USUAL),
    lambda quick: step_time.measure(step_time.QUICK if quick else step_time.USUAL),
    lambda quick: own_threads.measure(own_threads.QUICK if quick else own_threads.USUAL),
    lambda quick: memory.measure(memory.QUICK if quick else memory.USUAL),
    lambda quick: reading.measure(reading.QUICK if quick else reading.USUAL),
)


def main() -> None:
    """Measure, show and write."""
    arguments = _arguments()
    _forget_settings()
    machine = describe_machine()
    show_machine(machine)
    sections = [measured(arguments.quick) for measured in SECTIONS]
    for section in sections:
        show(section)
    if arguments.json:
        write_json(arguments.json, machine, sections)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What otel_torchdist costs.")
    parser.add_argument("--quick", action="store_true", help="a few rounds, which show that it works and little else")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    arguments = parser.parse_args()
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no such directory")
    return arguments


def _forget_settings() -> None:
    """Drop the developer's OpenTelemetry settings: they would change what is measured, here and in every process."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]


if __name__ == "__main__":
    main()
