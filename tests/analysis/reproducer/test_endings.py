"""Endings of the named rank in a script, which repeat how its process ended if that is recorded."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from otel_torchdist.analysis.reproducer.endings import end_of, is_assumed, statements_of
from otel_torchdist.judge.verdict.first_death import FirstDeath
from otel_torchdist.judge.verdict.past.post_mortem import stalled_verdict
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.analysis.reproducer.test_planning import NOW_S, RecordedWorld, all_ranks
from tests.support.worlds.fake_world import THRESHOLD_NS


def dead(status: int | None, failure: str = "") -> Verdict:
    """Return a verdict on the death of rank 2 with a wait status and an exception."""
    world = RecordedWorld(3)
    for rank in world.recorded[:2]:
        rank.enter(all_ranks(3), 1.0)
    verdict = stalled_verdict(world.snapshot(NOW_S), StallRules(THRESHOLD_NS))
    assert verdict is not None and verdict.ranks == (2,)
    deaths = {2: Death(1, status=status)} if status is not None else {}
    first = FirstDeath((2,), deaths, False, False, False, True, 1, None, 0)
    failures = {2: failure} if failure else {}
    return replace(verdict, kind=VerdictKind.DEAD, first=first, failures=failures)


@pytest.mark.parametrize(
    ("status", "failure", "statement"),
    [
        (int(signal.SIGKILL), "", "os.kill(os.getpid(), signal.SIGKILL)"),
        (int(signal.SIGSEGV), "", "os.kill(os.getpid(), signal.SIGSEGV)"),
        (50, "", "os.kill(os.getpid(), 50)"),
        (3 << 8, "", "os._exit(3)"),
        (1 << 8, "ValueError", 'raise ValueError("as in the job")'),
        (1 << 8, "BatchError", 'raise RuntimeError("BatchError")'),
        (1 << 8, 'x") or exit(', r"""raise RuntimeError('x") or exit(')"""),
        (None, "KeyError", 'raise KeyError("as in the job")'),
        (None, "", "os.kill(os.getpid(), signal.SIGKILL)"),
    ],
)
def test_ends_as_the_process_did(status: int | None, failure: str, statement: str) -> None:
    """The script's rank ends by the same signal, exit code or exception; by SIGKILL if nothing is recorded."""
    verdict = dead(status, failure)
    [waits, ends] = statements_of(end_of(verdict, 2, ()))
    assert waits.startswith("time.sleep(3)")
    assert ends == statement
    assert is_assumed(verdict) is (status is None and not failure)


def test_others_stay() -> None:
    """A rank that the verdict does not name stays away, independent of how the named rank ended."""
    assert statements_of(end_of(dead(int(signal.SIGKILL)), 1, ())) == ["time.sleep(1_000_000)"]
