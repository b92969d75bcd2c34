"""The page docs/compatibility.md, from results that runs of the tests and of `make release` have kept.

`make test RECORD=yes` and `make release ARGS=--keep` write `compatibility.json`. Nothing else does.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import metadata
from pathlib import Path
from typing import Final

import msgspec

from reference.pages import table, titled_page
from wheels.torches import VERSIONS

KEPT: Final = Path(__file__).with_name("compatibility.json")
_PYTHON: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)")
_NOT_RUN: Final = "not run"


class Suite(enum.Enum):
    """The part of the test suite that has run."""

    WHOLE = "whole"
    USUAL = "usual"
    THOROUGH = "thorough"


class SuiteRun(msgspec.Struct, frozen=True):
    """The newest complete run of a suite in one combination of versions.

    Attributes:
        torch: Version of torch, such as `2.15.0`.
        python: Version of Python, such as `3.11.7`.
        opentelemetry: Version of OpenTelemetry's SDK.
        machine: Architecture, such as `x86_64`.
        backends: Backends on which tests have passed.
        suite: The suite.
        passed: Number of tests that passed.
        skipped: Number of tests that were skipped, each for a reason in the output.
        failed: Number of tests that failed.
        day: Day of the run.
    """

    torch: str
    python: str
    opentelemetry: str
    machine: str
    backends: tuple[str, ...]
    suite: Suite
    passed: int
    skipped: int
    failed: int
    day: date

    @property
    def key(self) -> tuple[object, ...]:
        """The combination; a newer run of the same replaces this one."""
        gpu = "nccl" in self.backends
        return _release(self.torch), _release(self.python), self.opentelemetry, self.machine, gpu, self.suite.value


class Installation(msgspec.Struct, frozen=True):
    """The newest installation of a file of a release.

    Attributes:
        file: `sources`, or the platform of the wheel, such as `any`.
        python: Version of Python; '' if unknown.
        opentelemetry: Version of OpenTelemetry's SDK beside it; '' if unknown.
        torch: Version of the torch whose call it recorded; '' without torch.
        works: Whether the installed commands worked, or the call was recorded by the expected kernel.
        machine: Architecture.
        day: Day of the installation.
    """

    file: str
    python: str
    opentelemetry: str
    torch: str
    machine: str
    works: bool
    day: date

    @property
    def key(self) -> tuple[object, ...]:
        """The combination; a newer installation of the same replaces this one."""
        python, opentelemetry = _release(self.python)[:2], _release(self.opentelemetry)[:2]
        return self.file, _release(self.torch), python, opentelemetry, self.machine


class Compatibility(msgspec.Struct, frozen=True):
    """All kept results."""

    suites: tuple[SuiteRun, ...] = ()
    installations: tuple[Installation, ...] = ()


def read(kept: Path = KEPT) -> Compatibility:
    """Return the kept results; none if there is no file."""
    return msgspec.json.decode(kept.read_bytes(), type=Compatibility) if kept.exists() else Compatibility()


def add(kept: Path, result: SuiteRun | Installation) -> None:
    """Keep a result, in place of an older one of the same combination."""
    before = read(kept)
    match result:
        case SuiteRun():
            suites = (*(one for one in before.suites if one.key != result.key), result)
            after = Compatibility(tuple(sorted(suites, key=lambda one: one.key)), before.installations)
        case Installation():
            others = (one for one in before.installations if one.key != result.key)
            after = Compatibility(before.suites, tuple(sorted((*others, result), key=lambda one: one.key)))
    kept.write_bytes(msgspec.json.format(msgspec.json.encode(after), indent=1) + b"\n")


def compatibility_page(kept: Path = KEPT) -> str:
    """Return the page."""
    results = read(kept)
    pythons = _PYTHON.findall("\n".join(metadata("otel-torchdist").get_all("Classifier", [])))
    return titled_page(
        "Compatibility",
        "reference/compatibility.json",
        "Does it run with your torch, Python and OpenTelemetry? Each cell is the newest complete run of the tests in "
        "that combination, on any machine. [SUPPORT](../SUPPORT.md) says which versions are supported for how long.",
        table(["torch", *(f"Python {python}" for python in pythons)], _matrix(results.suites, VERSIONS, pythons)),
        "## The runs",
        "`usual` are the tests that every change must pass (`make test`), `thorough` the other ones, `whole` is both.",
        table(
            ["torch", "Python", "OpenTelemetry", "machine", "backends", "tests", "passed", "skipped", "failed", "on"],
            [_suite_row(run) for run in reversed(results.suites)],
        )
        if results.suites
        else "No run has been kept yet.",
        "## Installations",
        "Each file of a release was installed with pip in an empty environment without a compiler. Without torch, all "
        "its modules were imported, and `diagnose` had to find the failed rank in a log. With torch, a call had to be "
        "recorded: natively from a wheel for a platform, in Python from the one for `any`.",
        table(
            ["file", "torch", "Python", "OpenTelemetry", "machine", "works", "on"],
            [_installation_row(one) for one in results.installations],
        )
        if results.installations
        else "None has been kept yet.",
        "## Limits",
        "- `not run` means that no complete run has been kept, not that the combination fails.\n"
        "- Torch 2.15 has no wheels for Python 3.10.\n"
        "- The backend is gloo, on CPUs. NCCL is listed where tests on a GPU ran, and these use a single GPU. No "
        "other backend was run.\n"
        "- A run has one version of OpenTelemetry. Others, from the lower bound in `pyproject.toml` on, have been run "
        "only if the table has them.",
    )


def _matrix(runs: Sequence[SuiteRun], torches: Iterable[str], pythons: Sequence[str]) -> list[list[str]]:
    return [
        [minor, *(_cell([run for run in runs if _is_in(run, minor, python)]) for python in pythons)]
        for minor in (".".join(torch.split(".")[:2]) for torch in reversed([*torches]))
    ]


def _is_in(run: SuiteRun, torch: str, python: str) -> bool:
    return run.torch.startswith(f"{torch}.") and run.python.startswith(f"{python}.")


def _cell(runs: Sequence[SuiteRun]) -> str:
    if not runs:
        return _NOT_RUN
    newest = max(runs, key=lambda run: run.day)
    result = f"{newest.failed} failed" if newest.failed else "passed"
    return f"{result} ({newest.suite.value}, {newest.day})"


def _suite_row(run: SuiteRun) -> list[str]:
    counts = [str(count) for count in (run.passed, run.skipped, run.failed)]
    backends = ", ".join(run.backends)
    return [run.torch, run.python, run.opentelemetry, run.machine, backends, run.suite.value, *counts, str(run.day)]


def _installation_row(one: Installation) -> list[str]:
    works = "yes" if one.works else "no"
    return [one.file, one.torch or "-", one.python, one.opentelemetry, one.machine, works, str(one.day)]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
