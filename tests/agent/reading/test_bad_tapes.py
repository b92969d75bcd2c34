"""Unreadable or partly readable tapes beside others: one message each, and the other ranks are served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from otel_torchdist.job.directory import tapes_in
from otel_torchdist.tape.layout import VERSION
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.conftest import JOB
from tests.agent.life.test_life import check_once_without_orphans, count_on, recorded, up_on
from tests.agent.training import page_of
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.waiting import until

MEETINGS = 5


def copy_of(tape: Path, changes: Callable[[bytearray], None]) -> Path:
    """A new tape: another one's content with changes."""
    path = tape.with_name(f"{0xBAD:013x}{len(tapes_in(tape.parent)):03x}.tape")
    content = bytearray(tape.read_bytes())
    changes(content)
    path.write_bytes(content)
    return path


def truncated(content: bytearray) -> None:
    """Cut off the second half."""
    del content[len(content) // 2 :]


def corrupt(content: bytearray) -> None:
    """Flip a bit of the identity."""
    content[20] ^= 1


def of_another_version(content: bytearray) -> None:
    """Claim a future version."""
    content[8] = 99


def not_begun(content: bytearray) -> None:
    """Fill it with zeros."""
    content[:] = bytes(len(content))


def test_healthy_ones_are_served(
    begin: Callable[..., Ranks], agent: Callable[..., Running], base: Path, receiver: OtlpReceiver
) -> None:
    """Five bad tapes and a copy get one line each, with name and reason; two healthy ranks miss nothing.

    A third rank's tape is overwritten while it is read, which is one line more.
    """
    ranks = begin(3)
    by_rank = {rank_of(path): path for path in tapes_in(base / JOB)}
    good, spoiled_later = by_rank[0], by_rank[2]
    spoiled = {
        copy_of(good, truncated): "truncated or damaged",
        copy_of(good, corrupt): "damaged: the identity block",
        copy_of(good, of_another_version): f"version 99 of the format; this reader knows {VERSION}",
        copy_of(good, not_begun): "not a tape",
        copy_of(good, lambda content: content.clear()): "truncated: 0 bytes",
        copy_of(good, lambda content: None): f"is ignored: it is a copy of {good.name}",
    }
    running = agent()
    running.wait_for("found ranks? 0")
    ranks.meet(1)
    until(lambda: count_on(page_of(base), "all_reduce") == [1] * 3)
    assert up_on(page_of(base)).count("} 1.0") == page_of(base).count("torchdist_up{") == 3
    with spoiled_later.open("r+b") as file:
        file.seek(512)
        file.write(bytes(1024))
    running.wait_for(rf"a tape can no longer be read: {spoiled_later}: damaged")
    for sequence in range(2, MEETINGS + 1):
        for command in (f"enter {sequence}", "end"):
            for rank in (0, 1):
                ranks.send(rank, command)
    until(lambda: count_on(page_of(base), "all_reduce") == [MEETINGS] * 2)
    ranks.exit()
    assert running.end(40) == 0, running.story()
    lines = running.out.splitlines()
    for path, why in {**spoiled, spoiled_later: "damaged"}.items():
        [line] = [line for line in lines if str(path) in line]
        assert why in line
    assert "Traceback" not in running.out + running.err
    counts = recorded(receiver.spans(), "all_reduce")
    assert (counts[0], counts[1]) == (MEETINGS, MEETINGS)
    check_once_without_orphans(receiver.spans())


def rank_of(path: Path) -> int:
    """The rank that a tape belongs to."""
    tape = TapeReader(path)
    try:
        return tape.identity.rank
    finally:
        tape.close()


def lost_on(page: str) -> list[int]:
    """Records that `/metrics` counts as lost, by rank."""
    lines = sorted(line for line in page.splitlines() if line.startswith("torchdist_records_lost_total{"))
    return [int(float(line.rpartition(" ")[2])) for line in lines]


def test_interrupted_while_writing(
    begin: Callable[..., Ranks], agent: Callable[..., Running], base: Path, receiver: OtlpReceiver
) -> None:
    """Half a record at the end of a dead rank's tape is ignored; one that is followed by others counts as lost."""
    ranks = begin(2)
    running = agent()
    running.wait_for("found ranks? 0")
    ranks.meet(1)
    ranks.send(1, "half")  # as by a thread that died
    ranks.meet(2)
    until(lambda: lost_on(page_of(base)) == [0, 1])
    for rank in (0, 1):
        ranks.send(rank, "half")
        ranks.kill(rank)
    assert running.end(40) == 0, running.story()
    assert Counter(recorded(receiver.spans(), "all_reduce")) == {0: 2, 1: 2}
    assert "WARNING" not in running.out
    assert "Traceback" not in running.out + running.err
    assert "ranks 0-1 are dead" in running.out or "rank 1 is dead" in running.out
