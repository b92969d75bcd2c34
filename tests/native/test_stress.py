"""What of the library needs no torch, in many threads, under sanitizers: see `stress` for what the scenarios check."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.native.sanitizers import Sanitizer, stress_program

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
SEEDS = (1, 2)
LIMIT_S = 150.0


def figures_of(sanitizer: Sanitizer, scenario: str, seed: int) -> dict[str, int]:
    """Run a scenario, whose checks must all hold and which no sanitizer may object to; return its figures."""
    command = [stress_program(sanitizer), scenario, str(seed)]
    environ = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return {name: int(value) for name, value in (line.split() for line in done.stdout.splitlines())}


@pytest.fixture(params=[Sanitizer.ADDRESS, Sanitizer.THREAD], ids=lambda sanitizer: sanitizer.name.lower())
def sanitizer(request: pytest.FixtureRequest) -> Sanitizer:
    """Each sanitizer that watches several threads."""
    return request.param


@pytest.mark.parametrize("seed", SEEDS)
def test_laps(sanitizer: Sanitizer, seed: int) -> None:
    """Threads that are overtaken by whole laps of a tiny ring lose no end, spoil no record and keep no refuge."""
    figures = figures_of(sanitizer, "laps", seed)
    assert figures["operations"] == 80_000
    assert figures["dropped"] > 0
    assert figures["read"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_ends(sanitizer: Sanitizer, seed: int) -> None:
    """Every record that was begun is there, and every end is in the ring or late, exactly once."""
    assert figures_of(sanitizer, "ends", seed)["ended"] > 5_000


def test_plans(sanitizer: Sanitizer) -> None:
    """No call gets another one's plan, also with equal hashes; too many are forgotten; threads inherit none."""
    assert figures_of(sanitizer, "plans", 1)["taken_over"] > 0


def test_followed(sanitizer: Sanitizer) -> None:
    """A Work's entry is its own, though addresses are used again, entries stay behind, and there is little room."""
    figures = figures_of(sanitizer, "followed", 1)
    assert figures["found"] > 0
    assert figures["no_room"] > 0


def test_call_sites(sanitizer: Sanitizer) -> None:
    """The frame that is found is the first of the program's within reach, whatever C's frames lie between."""
    figures_of(sanitizer, "call_sites", 1)


def test_sessions(sanitizer: Sanitizer) -> None:
    """A session that ends while threads record in it is not freed under them, and its plans are of no other session."""
    assert figures_of(sanitizer, "sessions", 1)["recorded"] > 0


def test_forks() -> None:
    """A child that is forked while threads record, begin and end has no session, and can have one of its own.

    Without the sanitizers of memory and threads: these take locks of their own, which a child may inherit.
    """
    assert figures_of(Sanitizer.UNDEFINED, "forks", 1)["forks"] == 12
