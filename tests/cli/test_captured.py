"""What records a run, as `diagnose` and `watch` show it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import Kernel, TapeState
from tests.support.commands.asking import ask
from tests.support.tapes.fake_tape import RUN_ID, FakeTape

NATIVE = (Kernel.NATIVE, "2.15.0+cu130")
PYTHON = (Kernel.PYTHON, "2.15.0+cu130")
OLDER = (Kernel.PYTHON, "2.13.0")
UNKNOWN = (Kernel.UNKNOWN, "")
TEXTS = (
    ((NATIVE,) * 3, "recorded natively, torch 2.15.0+cu130"),
    ((PYTHON,) * 3, "recorded in Python, torch 2.15.0+cu130"),
    (
        (NATIVE, NATIVE, PYTHON),
        "recorded differently: ranks 0-1 natively, torch 2.15.0+cu130; rank 2 in Python, torch 2.15.0+cu130",
    ),
    (
        (OLDER, UNKNOWN, PYTHON),
        "recorded differently: rank 0 in Python, torch 2.13.0; rank 1 by an unknown kernel, torch unknown; "
        "rank 2 in Python, torch 2.15.0+cu130",
    ),
    ((UNKNOWN,) * 3, ""),
)


@pytest.fixture(params=TEXTS, ids=lambda case: case[1][:30] or "unknown")
def case(request: pytest.FixtureRequest, base: Path) -> Iterator[tuple[tuple[tuple[Kernel, str], ...], str]]:
    """The tapes of a finished run: what recorded each rank, and the text about it."""
    directory = base / "job-000000000000000a"
    directory.mkdir(mode=0o700)
    with ExitStack() as stack:
        for rank, (kernel, torch) in enumerate(request.param[0]):
            one = FakeTape(directory, rank, 3, kernel=kernel, torch=torch)
            stack.enter_context(closing(one.reader))
            stack.enter_context(closing(one.writer))
            one.run(at=time.monotonic_ns(), lasts=1000)
            one.writer.finish(TapeState.FINISHED)
    yield request.param


def test_it_is_said_once(base: Path, case: tuple[tuple[tuple[Kernel, str], ...], str]) -> None:
    """`diagnose` has a line in its heading, which names ranks only if they differ, and `watch` says it of the ranks.

    Neither says anything of a run whose tapes do not.
    """
    kernels, text = case
    heading = ask(base).out.split("\n\n")[0].splitlines()
    assert heading[2:-1] == ([text] if text else [])
    parties = ask(base, "--json").document["run"]["capture"]
    found = {rank: (one["kernel"], one["torch"]) for one in parties for rank in one["ranks"]}
    expected = {
        rank: (None if kernel is Kernel.UNKNOWN else kernel.name.lower(), torch or None)
        for rank, (kernel, torch) in enumerate(kernels)
    }
    assert found == expected
    assert len(parties) == len({*kernels})
    [found] = re.findall(r"  found (.*)", ask(base, f"{RUN_ID:032x}"[:8], command="watch").out)
    assert found == ", ".join(["ranks 0-2", *filter(None, [text])])
