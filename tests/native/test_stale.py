"""Operations whose Work or memory has the address of an earlier one."""

from __future__ import annotations

from pathlib import Path

from tests.support.jobs import Jobs
from tests.support.native_library import environ_of
from tests.support.warm_python import WarmPython


def test_waits_are_not_taken_for_earlier_ones(warm_python: WarmPython) -> None:
    """Python sees the wait for what it has recorded, though the library knew another operation at the same address.

    Without that, the end would be known from a later poll only.
    """
    jobs = Jobs(warm_python, Path(__file__).parent / "workers", environ=environ_of("native"))
    try:
        tapes = jobs.run("stale", 2).tapes
    finally:
        jobs.clean_up()
    for tape in tapes:
        new = [one for one in tape.named("all_reduce") if one.function == "new"]
        assert {one.how for one in new} <= {"WAIT", "POLL"}
        # A poll may have come before the wait; the library took half of them for earlier ones.
        assert sum(one.raw.wait_entered_ns is not None for one in new) > 0.8 * len(new)
