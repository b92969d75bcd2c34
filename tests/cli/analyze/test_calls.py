"""`analyze --only calls` over a real job on gloo: while it runs, and after all of its ranks were killed."""

from __future__ import annotations

import csv
import io
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.cli.analyze.rows import COLUMNS
from otel_torchdist.node.job.directory import job_directories
from tests.cli.gloo_jobs import COUNTED_LATE_NS, COUNTED_STEPS, COUNTING, GlooJobs
from tests.support.commands.asking import Answer, analyze, ask_as_people_do
from tests.support.commands.running import Running
from tests.support.commands.terminal import Terminal
from tests.support.waiting import until

STEPS, LATE_NS = COUNTED_STEPS, COUNTED_LATE_NS


@pytest.fixture(scope="module")
def job(gloo_by_kernel: Callable[..., GlooJobs]) -> GlooJobs:
    """Four ranks, three of which wait for rank 2 in the last all_reduce."""
    job = gloo_by_kernel("misses one", worker=COUNTING)
    until(lambda: job.all_are_there() and _document(job.base)["rows"][0]["open"] == 3, 60)
    return job


def _stats(base: Path, *arguments: str | Path) -> Answer:
    return analyze(base, "--sort", "calls", *arguments, only="calls")


def _document(base: Path, *arguments: str) -> dict[str, Any]:
    return _stats(base, "--json", *arguments).document["calls"]


def _row(document: dict[str, Any], operation: str, members: int = 4) -> dict[str, Any]:
    [row] = [row for row in document["rows"] if (row["operation"], row["group"]["members"]) == (operation, members)]
    return row


def _check(document: dict[str, Any]) -> None:
    """Calls and bytes are as in the script, and the rank that is late is the one that arrives last."""
    for operation, ranks, sent in (
        ("all_gather_into_tensor", 4, 1024 * 4),
        ("barrier", 4, 0),
        ("broadcast", 4, 256),
        ("send", 1, 64),
        ("recv", 1, 0),
    ):
        row = _row(document, operation)
        assert list(row["calls_by_rank"].values()) == [STEPS] * ranks, operation
        assert (row["message_bytes"], row["open"], row["counts_differ"]) == (STEPS * sent, 0, False), operation
    late = _row(document, "all_reduce")
    assert late["calls_by_rank"] == {"0": STEPS + 1, "1": STEPS + 1, "2": STEPS, "3": STEPS + 1}
    assert (late["open"], late["timed"], late["message_bytes"]) == (3, 4 * STEPS, (4 * STEPS + 3) * 4096)
    assert (late["split"], late["compared"]) == (4 * STEPS, STEPS)
    [last] = late["latecomers"]
    assert (last["rank"], last["times"]) == (2, STEPS)
    assert late["wait_ns"] > 3 * STEPS * LATE_NS * 0.8
    assert late["wait_ns"] > late["transfer_ns"]
    pair = _row(document, "all_reduce", members=2)
    assert (pair["size_class"], pair["message_bytes"]) == ("1MiB", 2 * STEPS * 400_000)
    bandwidth = pair["bandwidth"]
    assert bandwidth["over"] == "transfer"
    assert bandwidth["algorithm_bytes_per_second"] == pytest.approx(2 * STEPS * 400_000 / (pair["transfer_ns"] / 1e9))
    assert bandwidth["bus_bytes_per_second"] == pytest.approx(bandwidth["algorithm_bytes_per_second"])
    [difference] = document["differences"]
    assert (difference["operation"], [one["calls"] for one in difference["counts"]]) == ("all_reduce", [11, 11, 10, 11])
    ranks = document["ranks"]
    [came_last] = [rank["came_last"] for rank in ranks if rank["rank"] == 2]
    assert came_last >= STEPS  # at each of these; at the others, which rank comes last is chance
    assert min(ranks, key=lambda rank: rank["waiting_ns"])["rank"] == 2
    [group] = [one for one in document["groups"] if one["group"]["members"] == 4 and not one["point_to_point"]]
    assert (group["complete"], group["incomplete"], group["mismatched"]) == (4 * STEPS, 1, 0)
    assert group["unfinished"][0]["missing"] == [2]


def test_running(job: GlooJobs) -> None:
    """While the job runs, and hangs, all its calls are counted; the difference in counts comes before the tables."""
    answer = _stats(job.base, "--json")
    assert (answer.code, answer.document["warnings"]) == (0, [])
    _check(answer.document["calls"])
    text = _stats(job.base)
    assert text.has("  all_reduce in default_pg: rank 2 called it 10 times, ranks 0-1,3 11 times \\(1 open\\)")
    assert text.has(r" all_reduce +default_pg +4KiB +43 +10-11 ≠ +172 KiB +[\d.]+ ms +[\d.]+ ms +\d+% .* 3 *")
    assert text.has(r" all_reduce +default_pg +4KiB +2 10 of 10 +100% +[\d.]+ ms *")
    assert text.has(
        r"  all_reduce \(sequence 41, default_pg\): rank 2 has not entered it, ranks 0-1,3 have not left it"
    )
    assert text.out.index("Members of a group") < text.out.index(" per rank ")
    assert "\x1b" not in text.out


def test_in_a_terminal_of_100_columns(job: GlooJobs) -> None:
    """No line of a table is wider, no number is cut off, and what was left out is named."""
    terminal = Terminal(job.base, "analyze", "--only", "calls", "--by", "operation,group,size,site")
    try:
        terminal.wait_for(r"\n  \(no room for .*alg/s.*: use a wider terminal, a pipe, --json or --csv\)\n")
        terminal.wait_for(r" per rank (.|\n)*\n +3 ")
    finally:
        terminal.close()
    tables = [line for line in terminal.text.splitlines() if line.startswith(" ") and not line.startswith("  ")]
    assert len(tables) > 20 and max(map(len, tables)) <= 100
    assert "…" not in terminal.text


def test_csv(job: GlooJobs) -> None:
    """CSV has the columns that are documented, one line for each row, and numbers that add up as in JSON."""
    answer = _stats(job.base, "--csv", "--by", "rank,operation")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert tuple(rows[0]) == COLUMNS
    document = _document(job.base)
    for name in ("calls", "message_bytes", "time_ns", "wait_ns"):
        assert sum(int(row[name]) for row in rows) == sum(row[name] for row in document["rows"]), name
    assert {row["rank"] for row in rows} == {"0", "1", "2", "3"}
    assert {row["group_key"] for row in rows} == {""}


def test_choices(job: GlooJobs) -> None:
    """Ranks, call sites, order and number of lines can be chosen."""
    document = _document(job.base, "--ranks", "1,3", "--by", "site")
    assert [one["rank"] for one in document["ranks"]] == [1, 3]
    lines = {row["call_site"]["line"]: row["calls"] for row in document["rows"] if row["call_site"]["file"]}
    called = next(n for n, line in enumerate(COUNTING.read_text().splitlines(), 1) if "dist.barrier" in line)
    assert lines[called] == 2 * STEPS
    by_name = _document(job.base, "--sort", "name", "--by", "operation")["rows"]
    assert [row["operation"] for row in by_name] == sorted(row["operation"] for row in by_name)
    assert _stats(job.base, "--rows", "2").has("  … 7 more; --rows 0 shows all")


def test_ranks_that_are_not_there(job: GlooJobs) -> None:
    """One line says so, and those that are there are counted."""
    answer = _stats(job.base, "--ranks", "9")
    assert answer.err.startswith("otel-torchdist: warning: --ranks: rank 9 has no calls here\n")
    assert answer.err.endswith(": no calls of the requested ranks\n")
    some = _stats(job.base, "--ranks", "0,9")
    assert (some.code, some.err) == (0, "otel-torchdist: warning: --ranks: rank 9 has no calls here\n")


def test_at_the_end_of_watch(job: GlooJobs, start_beside: Callable[..., Running]) -> None:
    """`watch --stats` prints the tables when it ends, here by Ctrl-C while the job still hangs."""
    running = start_beside(job, "watch", "--stats", "--plain")
    running.wait_for("found ranks")
    running.wait_for("run [0-9a-f]{8}$")
    running.signal_group(signal.SIGINT)
    assert (running.end(60), running.err) == (0, "")
    assert re.search(r"^  all_reduce in default_pg: rank 2 called it 10 times, ranks 0-1,3 11 times", running.out, re.M)
    assert re.search(r"^ all_reduce +default_pg +4KiB +43 +10-11 ≠", running.out, re.M)


def test_killed(job: GlooJobs) -> None:
    """After SIGKILL of all ranks the same is counted; the console script prints the tables."""
    job.kill()
    _check(_document(job.base))
    answer = ask_as_people_do(job.base, "analyze", "--only", "calls")
    assert (answer.code, answer.err) == (0, "")
    assert answer.has(r" rank +calls +open +bytes +span +communicating .*")


def test_damaged_tape(job: GlooJobs) -> None:
    """A tape that cannot be read is named; the others are counted, and the rank's calls are said to be unknown."""
    job.kill()
    [directory] = job_directories(job.base)
    tape = next(directory.glob("*.tape"))
    tape.write_bytes(b"\0" * 100)
    answer = _stats(job.base)
    assert answer.code == 0
    assert f"otel-torchdist: warning: {tape}" in answer.err
    assert answer.has(r"not known: the calls of rank \d")
