"""What is reported of ranks that were asked to save their state."""

from __future__ import annotations

import dataclasses

from otel_torchdist.model.rescue import Rescue, RescueState
from otel_torchdist.verdict.wording.ends import describe_rescue
from tests.support.worlds.fake_world import FakeWorld


def described(*rescues: Rescue | None) -> str:
    """What is reported of ranks, of which None are not seen."""
    known = {rank: rescue for rank, rescue in enumerate(rescues) if rescue is not None}
    return describe_rescue(known, len(rescues))


def test_what_fits_together() -> None:
    """Every rank has saved the same step."""
    assert described(*[Rescue(RescueState.SAVED, 1200)] * 8) == "rescued: ranks 0-7 at step 1200"


def test_what_does_not() -> None:
    """One rank of another step, or one without, makes the others' useless, and is named with the reason."""
    saved = Rescue(RescueState.SAVED, 1200)
    assert described(saved, Rescue(RescueState.SAVED, 1199), saved) == (
        "rescued, but not usable: ranks 0,2 at step 1200; rank 1 at step 1199"
    )
    others = [Rescue(state, 1200) for state in RescueState if state is not RescueState.SAVED]
    assert described(saved, None, *others) == (
        "rescued, but not usable: rank 0 at step 1200; rank 1 is not seen; rank 2 did not answer; "
        "rank 3 had not ended; rank 4 refused, in the step of an optimizer; rank 5 failed, as its log shows; "
        "rank 6 went on meanwhile; rank 7 took too long; rank 8 died before"
    )
    assert described(Rescue(), Rescue()) == "not rescued: ranks 0-1 did not answer"


def test_word_on_the_tape() -> None:
    """State and step fit into one word, and a state of a later version counts as none."""
    for state in RescueState:
        assert Rescue.decode(Rescue(state, 123_456_789_012).encode()) == Rescue(state, 123_456_789_012)
    assert Rescue.decode(Rescue(RescueState.SAVED, 1 << 60).encode()).state is RescueState.SAVED
    assert Rescue(RescueState.SAVED, 1 << 60).encode() < 1 << 52
    assert Rescue.decode(15) == Rescue()


def test_rank_that_dies() -> None:
    """What a rank has saved outlives it; of one that dies before, nothing more comes."""
    view = FakeWorld(1).snapshot(1.0).ranks[0]
    for rescue, expected in (
        (Rescue(RescueState.SAVED, 3), Rescue(RescueState.SAVED, 3)),
        (Rescue(RescueState.RUNNING, 3), Rescue(RescueState.DEAD, 3)),
        (Rescue(), Rescue(RescueState.DEAD)),
    ):
        assert dataclasses.replace(view, alive=False, rescue=rescue).rescued == expected
        assert dataclasses.replace(view, rescue=rescue).rescued == rescue
