"""Command line: `python -m wheels [--torch VERSION]... [--installed] [--machine MACHINE]... [--to FOLDER]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from otel_torchdist.native.build import NoToolError
from otel_torchdist.native.library import NativeError
from wheels.libraries import MACHINES, RequirementsError, build_library, compiler_for
from wheels.package import platform_wheel, pure_wheel, source_distribution
from wheels.torches import VERSIONS, Torch, TorchError, of_environment, of_index


def main() -> None:
    """Build the requested wheels; by default all of a release."""
    parser = argparse.ArgumentParser(
        prog="python -m wheels",
        description="Build wheels with native libraries, a pure-Python wheel, and the source distribution.",
    )
    parser.add_argument(
        "--torch", action="append", metavar="VERSION", help=f"build only for this version of {', '.join(VERSIONS)}"
    )
    parser.add_argument(
        "--installed", action="store_true", help="build for the installed torch, without downloading others"
    )
    parser.add_argument("--machine", action="append", choices=MACHINES, help="build only for this architecture")
    parser.add_argument("--to", type=Path, default=Path("dist"), metavar="FOLDER", help="output folder (dist)")
    options = parser.parse_args()
    if options.installed and options.torch:
        parser.error("--installed and --torch exclude each other")
    machines = [machine for machine in options.machine or MACHINES if _has_compiler(machine)]
    try:
        torches = (
            [of_environment()] if options.installed else [of_index(version) for version in options.torch or VERSIONS]
        )
        wheels = [_wheel_for(machine, torches, options.to) for machine in machines]
    except (TorchError, NativeError, RequirementsError) as error:
        sys.exit(f"wheels: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"wheels: {error}")
    for path in (*wheels, pure_wheel(options.to), source_distribution(options.to)):
        print(f"{path}: {path.stat().st_size >> 10} KiB")


def _has_compiler(machine: str) -> bool:
    try:
        compiler_for(machine)
    except NoToolError as error:
        print(f"no wheel for {machine}: {error}", file=sys.stderr)
        return False
    return True


def _wheel_for(machine: str, torches: Sequence[Torch], to: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / f"manylinux_2_28_{machine}"
        for torch in torches:
            library = build_library(torch, machine, folder)
            print(f"torch {torch.version}, {machine}: {library.stat().st_size >> 10} KiB", flush=True)
        return platform_wheel(folder, to)


if __name__ == "__main__":
    main()
