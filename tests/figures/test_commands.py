"""Commands report the counts of an ordinary program, from its tapes and from its archive."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from tests.analysis.timeline.checker import Timeline
from tests.figures.expectations import step_bounds_s
from tests.figures.running import RANKS, Run
from tests.figures.witness import DEFAULT, GROUPS, TEAM, Witness
from tests.support.commands.asking import Answer, ask

CREATIONS: Final = {DEFAULT: "init_process_group", TEAM: "new_group"}
FIRST_STEADY: Final = 2
"""The graph counts from the third step on."""
NOT_COMPARED: Final = ("broadcast", "scatter", "gather", "send", "recv")
"""Operations in which no rank waits for all others."""


@pytest.fixture(params=["tapes", "archive"])
def source(request: pytest.FixtureRequest, run: Run) -> Path:
    """Where commands read the run."""
    [job] = run.base.glob("job-*")
    return job if request.param == "tapes" else run.archive


def document(run: Run, source: Path, part: str, *arguments: str) -> Any:
    """Return a part of an analysis, from its JSON."""
    found = asked(run, source, "analyze", "--only", part, "--json", *arguments).document
    assert found["warnings"] == []
    return found[part]


def asked(run: Run, source: Path, command: str, *arguments: str) -> Answer:
    """Run a command on a source."""
    answer = ask(run.base, *arguments, source, command=command)
    assert (answer.code, answer.err) == (0, "")
    return answer


def counted(run: Run) -> dict[tuple[int, str, str], tuple[int, int]]:
    """Return calls and bytes by rank, group and operation, the creation of groups included."""
    found: dict[tuple[int, str, str], tuple[int, int]] = {}
    for witness in run.witnesses:
        for (group, operation), calls in witness.counts.items():
            found[witness.rank, group, operation] = calls, witness.sizes[group, operation]
        for group, operation in CREATIONS.items():
            found[witness.rank, group, operation] = 1, 0
    return found


def of_rank(run: Run, witness: Witness) -> tuple[int, int]:
    """Return calls and bytes of a rank."""
    own = [both for (rank, _, _), both in counted(run).items() if rank == witness.rank]
    return sum(calls for calls, _ in own), sum(size for _, size in own)


def test_statistics(run: Run, source: Path) -> None:
    """Calls and bytes by operation, group and rank are those of the program; none is open, failed or missing."""
    found = document(run, source, "calls", "--by", "operation,group,rank")
    rows = {(row["rank"], row["group"]["name"], row["operation"]): row for row in found["rows"]}
    assert {key: (row["calls"], row["message_bytes"]) for key, row in rows.items()} == counted(run)
    assert {(row["open"], row["failed"], row["counts_differ"]) for row in rows.values()} == {(0, 0, False)}
    assert found["differences"] == []
    for row in rows.values():
        assert row["timed"] + row["not_timed"] == row["calls"]
    timed = {key: row["timed"] for key, row in rows.items() if key[2] not in CREATIONS.values()}
    metric = run.final.series("torchdist_timed_operations_total")
    assert timed == {(rank, group, operation): metric[str(rank), group, operation] for rank, group, operation in timed}


def test_statistics_of_ranks(run: Run, source: Path) -> None:
    """Each rank's calls, bytes and comparable collectives are the program's; it waited as long as the other slept."""
    found = document(run, source, "calls")
    ranks = {one["rank"]: one for one in found["ranks"]}
    for witness in run.witnesses:
        shown = ranks[witness.rank]
        compared = sum(call.operation not in NOT_COMPARED for call in witness.calls)
        assert (shown["calls"], shown["message_bytes"]) == of_rank(run, witness)
        assert (shown["open"], shown["failed"], shown["lost"], shown["compared"]) == (0, 0, 0, compared)
        assert shown["communicating_ns"] / 1e9 <= witness.took_s + 0.12
        assert shown["waiting_ns"] <= shown["communicating_ns"]
    assert ranks[0]["waiting_ns"] / 1e9 >= run.witnesses[0].report["late_s"] / 2
    undecided = ranks[0]["compared"] - sum(one["came_last"] for one in ranks.values())
    assert undecided in (0, 1)  # nobody comes last where both come in the same nanosecond


def test_statistics_of_groups(run: Run, source: Path) -> None:
    """Each group has as many complete collectives as gloo has numbered, and one message."""
    groups = document(run, source, "calls")["groups"]
    collectives = {one["group"]["name"]: one for one in groups if not one["point_to_point"]}
    for group in GROUPS:
        numbered = max(call.sequence for call in run.witnesses[0].calls if call.group == group)
        shown = collectives[group]
        assert (shown["complete"], shown["last_sequence"], shown["group"]["members"]) == (numbered, numbered, RANKS)
        assert (shown["open"], shown["incomplete"], shown["mismatched"]) == (0, 0, 0)
    [messages] = [one for one in groups if one["point_to_point"]]
    assert (messages["complete"], messages["open"], messages["incomplete"]) == (1, 0, 0)


def test_statistics_as_csv(run: Run, source: Path) -> None:
    """The rows of CSV have the same calls and bytes."""
    text = asked(run, source, "analyze", "--only", "calls", "--csv", "--by", "operation,group,rank").out
    rows = csv.DictReader(io.StringIO(text))
    found = {
        (int(row["rank"]), row["group_name"], row["operation"]): (int(row["calls"]), int(row["message_bytes"]))
        for row in rows
    }
    assert found == counted(run)


def sent(witness: Witness) -> float:
    """Return what a rank sends to the other one from the third step on, by the fewest bytes that do."""
    total = 0.0
    for call in witness.calls:
        if call.step >= FIRST_STEADY:
            is_shared = call.operation in ("gather", "scatter", "reduce")  # half of the parts stay where they are
            total += call.size / (2 if is_shared else 1)
    return total


def test_graph(run: Run, source: Path) -> None:
    """The world is one axis of data parallelism, and each rank sends the other what the program's tensors have."""
    found = document(run, source, "graph")
    [axis] = found["axes"]
    assert (axis["size"], axis["members"], found["steady"], found["groups"]) == (RANKS, [[0, 1]], True, [])
    assert sorted(axis["names"]) == [*GROUPS]
    assert axis["roles"][0]["role"] == "DP"
    reduced = [
        call
        for witness in run.witnesses
        for call in witness.calls
        if call.operation == "all_reduce" and call.step >= FIRST_STEADY and call.size > 64
    ]
    assert axis["roles"][0]["calls"] == len(reduced)
    assert axis["roles"][0]["sent_bytes"] == sum(call.size for call in reduced)
    traffic = {(one["from"], one["to"]): one["bytes"] for one in found["traffic"]}
    assert traffic == {
        (witness.rank, 1 - witness.rank): pytest.approx(sent(witness), abs=len(witness.calls))
        for witness in run.witnesses
    }
    assert axis["sent_bytes"] == pytest.approx(sum(traffic.values()), abs=len(run.witnesses[0].calls))
    assert found["unattributed_bytes"] == 0


def test_critical_path(run: Run, source: Path) -> None:
    """The path is one through steps of the program, as long as one of these, and its causes are none of a pipeline."""
    found = document(run, source, "path")
    steps, path = found["steps"], found
    assert FIRST_STEADY <= steps["first"] < steps["last"] < run.witnesses[0].steps
    assert steps["count"] == steps["last"] - steps["first"] + 1
    least, most = step_bounds_s(run)
    assert least <= (path["computing_ns"] + path["transfer_ns"]) / 1e9 <= most
    assert least <= steps["median_ns"] / 1e9 <= most
    assert sum(piece["ns"] for piece in path["pieces"]) <= path["computing_ns"] + path["transfer_ns"]
    assert {cause["kind"] for cause in found["causes"]} <= {"line", "rank", "transfer"}
    for rank in found["ranks"]:
        assert (rank["computing_ns"] + rank["waiting_ns"] + rank["transfer_ns"]) / 1e9 <= most


def test_advice(run: Run, source: Path) -> None:
    """Nothing is advised about what the program does not have: stages, experts, nodes."""
    topics = {one["topic"] for one in document(run, source, "advice")}
    assert not topics & {"unequal stages", "slow node", "uneven experts"}


def test_report(run: Run, source: Path, tmp_path: Path) -> None:
    """The report has the calls, bytes and steps of the program, and no verdict."""
    out = tmp_path / "report.html"
    answer = ask(run.base, "--html", out, source, command="analyze", threshold_s=20.0)
    assert (answer.code, answer.err) == (0, "")
    packed = re.search(rb'id="data">([^<]*)', out.read_bytes())
    assert packed is not None
    found = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    totals: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for row in found["calls"]:
        totals[row["group"]["name"], row["operation"]] += row["calls"]
        sizes[row["group"]["name"], row["operation"]] += row["message_bytes"]
    assert totals == _summed(counted(run), 0)
    assert +sizes == +_summed(counted(run), 1)
    columns = found["ranks"]
    for place, rank in enumerate(columns["rank"]):
        assert (columns["calls"][place], columns["bytes"][place]) == of_rank(run, run.witnesses[rank])
    assert found["heading"]["calls"] == sum(columns["calls"])
    assert found["incidents"] == []
    assert columns["steps"] == [witness.steps - 1 for witness in run.witnesses]
    assert {one["tone"] for one in found["conclusions"]} <= {"good"}


def test_tables(run: Run, source: Path, tmp_path: Path) -> None:
    """The tables of Parquet have each call with its group, bytes, step and root, each step, and nothing lost."""
    asked(run, source, "export", "--parquet", str(tmp_path))
    operations = f"'{tmp_path}/operations.parquet'"
    rows = _query(
        f"SELECT rank, description, operation, sequence, message_bytes, step, peer FROM {operations} "
        f"JOIN '{tmp_path}/groups.parquet' USING (group_key) WHERE kind = 'operation' AND NOT is_point_to_point"
    )
    assert sorted(rows, key=str) == sorted(
        (
            (witness.rank, call.group, call.operation, call.sequence, call.size, call.step, call.root)
            for witness in run.witnesses
            for call in witness.calls
            if call.sequence
        ),
        key=str,
    )
    size = run.witnesses[0].sizes[DEFAULT, "send"]
    messages = f"SELECT rank, operation, message_bytes, peer FROM {operations} WHERE is_point_to_point"
    assert sorted(_query(messages)) == [(0, "send", size, 1), (1, "recv", 0, 0)]
    steps = f"SELECT rank, count(*) FROM '{tmp_path}/steps.parquet' GROUP BY rank ORDER BY rank"
    assert _query(steps) == [(witness.rank, witness.steps) for witness in run.witnesses]
    ranks = f"SELECT rank, operations, lost, state FROM '{tmp_path}/ranks.parquet' ORDER BY rank"
    assert _query(ranks) == [(one.rank, of_rank(run, one)[0], 0, "finished") for one in run.witnesses]


def test_timeline(run: Run, source: Path, tmp_path: Path) -> None:
    """The timeline has each call of each rank as a slice with its bytes, each step, and no stall."""
    out = tmp_path / "timeline.pftrace"
    asked(run, source, "export", "--perfetto", str(out))
    drawn = Timeline.of(out)
    calls = [one for one in drawn.slices if "bytes" in one.arguments or one.name in CREATIONS.values()]
    found = Counter((one.rank, one.name) for one in calls)
    sizes: Counter[tuple[int, str]] = Counter()
    for one in calls:
        sizes[one.rank, one.name] += one.arguments.get("bytes", 0)
    expected: Counter[tuple[int, str]] = Counter()
    expected_sizes: Counter[tuple[int, str]] = Counter()
    for (rank, _, operation), (number, size) in counted(run).items():
        expected[rank, operation] += number
        expected_sizes[rank, operation] += size
    assert found == expected
    assert +sizes == +expected_sizes
    for witness in run.witnesses:
        own = [one.name for one in drawn.slices if one.rank == witness.rank]
        steps = [name for name in own if name.startswith("step ")]
        assert steps == [f"step {number}" for number in range(witness.steps + 1)]  # the last is what comes after them
        assert own.count("optimizer step") == witness.report["counts"]["optimizer"]
    assert drawn.named("stall") == []


def _summed(of: Mapping[tuple[int, str, str], tuple[int, int]], place: int) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (_, group, operation), both in of.items():
        found[group, operation] += both[place]
    return found


def _query(sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.sql(sql).fetchall()
