"""Command line: `python -m benchmarks [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks import per_call, reading
from benchmarks.machine import describe_machine
from benchmarks.report import show, show_machine, write_json


def main() -> None:
    """Measure, show and write."""
    arguments = _arguments()
    _forget_settings()
    machine = describe_machine()
    show_machine(machine)
    sections = [
        per_call.measure(per_call.QUICK if arguments.quick else per_call.USUAL),
        reading.measure(reading.QUICK if arguments.quick else reading.USUAL),
    ]
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
