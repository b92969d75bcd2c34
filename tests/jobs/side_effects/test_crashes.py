"""A rank that the operating system ends in the middle of a collective leaves a tape that shows it."""

from __future__ import annotations

from contextlib import closing

from otel_torchdist.model.kinds import TapeState
from otel_torchdist.tape.reading.reader import TapeReader
from tests.jobs.side_effects.conftest import Run


def test_sizes_that_disagree(run: Run) -> None:
    """Gloo aborts the process: same code, and its tape shows the operation still open and its rank gone."""
    codes = [0, -6]
    run("crashes", 2, "off", codes=codes)
    job = run("crashes", 2, "on", codes=codes)
    survivor, aborted = job.tapes
    assert survivor.only("all_reduce").failure == "RuntimeError"
    assert (aborted.status.state, aborted.lost) == (TapeState.RUNNING, 0)
    assert aborted.only("barrier").has_ended
    operation = aborted.only("all_reduce")
    assert (operation.how, operation.signature.shapes) == ("open", ((4,),))
    assert operation.function == "<module>"
    with closing(TapeReader(aborted.path)) as tape:
        assert not tape.is_alive()
