"""The queries of the page on the archive, on a real job: by DuckDB on its Parquet files, by ClickHouse on its spans.

The job is that of `counting.py`: what each query has to find is known, whatever has recorded it.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import msgspec
import pytest

from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.operations import Operation
from otel_torchdist.runs.tables.schema import TABLES
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.operation import attributes_of_record
from tests.cli.export.conftest import Archived, asked
from tests.cli.gloo_jobs import COUNTED_LATE_NS, COUNTED_STEPS, COUNTING
from tests.support.commands.asking import analyze, ask
from tests.support.repository import REPOSITORY
from tests.support.tapes.fake_tape import FakeTape

PAGE = (REPOSITORY / "docs" / "archive.md").read_text()
FOR_DUCKDB, FOR_CLICKHOUSE = (
    re.findall(r"```sql\n(.*?)```", part, re.DOTALL)
    for part in PAGE.partition("## Six queries")[2].split("## The same with ClickHouse")
)
ALL_REDUCE_LINE = next(n for n, line in enumerate(COUNTING.read_text().splitlines(), 1) if "ones(1024)" in line)
STEPS, LATE_MS, LATE = COUNTED_STEPS, COUNTED_LATE_NS / 1e6, 2
Rows: TypeAlias = list[dict[str, Any]]


@pytest.fixture(scope="module")
def by_duckdb(archived: Archived) -> list[Rows]:
    """Return DuckDB's answer to each query."""
    views, *queries = FOR_DUCKDB
    with duckdb.connect() as database:
        database.execute(re.sub(r"FROM '", f"FROM '{archived.tables}/", views))
        answers: list[Rows] = []
        for query in queries:
            found = database.execute(query)
            names = [column[0] for column in found.description or ()]
            answers.append([dict(zip(names, row, strict=True)) for row in found.fetchall()])
    return answers


@pytest.fixture(scope="module")
def by_clickhouse(archived: Archived, tmp_path_factory: pytest.TempPathFactory) -> list[Rows]:
    """Return ClickHouse's answer to each query."""
    answers = _asked_of_clickhouse(archived.spans, FOR_CLICKHOUSE, tmp_path_factory.mktemp("clickhouse"))
    return [answers[str(place)] for place in range(1, len(FOR_CLICKHOUSE))]


def _asked_of_clickhouse(spans: Path, statements: list[str], folder: Path) -> dict[str, Rows]:
    """What ClickHouse answers to statements, by their places; skips where there is none."""
    if importlib.util.find_spec("chdb") is None:
        pytest.skip("chdb, the embedded ClickHouse, is not installed")
    file = folder / "statements.json"
    file.write_text(json.dumps([statement.strip().rstrip(";") for statement in statements]))
    worker = Path(__file__).parent / "workers" / "clickhouse.py"
    command = [sys.executable, str(worker), str(spans), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=["by_duckdb", "by_clickhouse"])
def answers(request: pytest.FixtureRequest, archived: Archived) -> list[Rows]:
    """The answers of one of them."""
    return request.getfixturevalue(request.param)


def _row(rows: Rows, **wanted: Any) -> dict[str, Any]:
    [row] = [row for row in rows if all(str(row[name]) == str(value) for name, value in wanted.items())]
    return row


def _stats(archived: Archived) -> dict[str, Any]:
    """Return the row of `analyze` for the all_reduce of all ranks in the same archive."""
    document = analyze(archived.tapes, archived.archive, "--json", only="calls").document["calls"]
    [row] = [row for row in document["rows"] if (row["operation"], row["group"]["members"]) == ("all_reduce", 4)]
    return row


def test_there_are_six() -> None:
    """The page has a view or views and six queries for each of the two, and no other page has any."""
    assert (len(FOR_DUCKDB), len(FOR_CLICKHOUSE)) == (7, 7)
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "deploy").rglob("*.md")]
    assert [page.name for page in pages if "```sql" in page.read_text()] == ["archive.md"]


def test_kernel(archived: Archived) -> None:
    """The job was recorded as it should be: how ends are known differs, and nothing else may."""
    ends = asked(f"SELECT DISTINCT ended_how FROM '{archived.tables}/operations.parquet' WHERE kind = 'operation'")
    found = {how for (how,) in ends}
    assert ("callback" in found) == (archived.kernel == "native")


def test_no_query_loses_calls(answers: list[Rows]) -> None:
    """Each query that counts calls counts all that the ranks have made and ended."""
    rootless, rooted, messages = STEPS * (3 * 4 + 2), STEPS * 4, STEPS * 2
    ended, unended = rootless + rooted + messages, 3
    assert sum(int(row["calls"]) for row in answers[0]) == ended + unended
    assert sum(int(row["timed"]) for row in answers[0]) == ended
    assert sum(int(row["meetings"]) for row in answers[1]) == rootless
    assert sum(int(row["calls"]) for row in answers[3]) == ended
    assert sum(int(row["calls"]) for row in answers[4]) == rootless
    assert sum(int(row["ended"]) for row in answers[5]) >= ended  # with the creation of groups


def test_totals(archived: Archived, answers: list[Rows]) -> None:
    """Calls and bytes of each group and operation are those of the script, and the time that of `analyze`."""
    for operation, calls, sent in (
        ("all_reduce", 4 * STEPS + 3, (4 * STEPS + 3) * 4096),
        ("broadcast", 4 * STEPS, STEPS * 256),
        ("barrier", 4 * STEPS, 0),
        ("all_gather_into_tensor", 4 * STEPS, 4 * STEPS * 1024),
        ("send", STEPS, STEPS * 64),
    ):
        row = _row(answers[0], operation=operation, group_name="default_pg")
        assert (int(row["calls"]), int(row["bytes"])) == (calls, sent), operation
    assert answers[0][0]["operation"] == "all_reduce"
    assert float(answers[0][0]["seconds"]) == pytest.approx(_stats(archived)["time_ns"] / 1e9, rel=0.01)


def test_lateness(answers: list[Rows]) -> None:
    """The rank that sleeps comes last in every all_reduce of the default group, by what it sleeps."""
    group = _row(answers[0], operation="all_reduce", group_name="default_pg")["group_key"]
    rows = [row for row in answers[1] if (row["operation"], row["group_key"]) == ("all_reduce", group)]
    assert {int(row["rank"]): int(row["came_last"]) for row in rows} == {0: 0, 1: 0, LATE: STEPS, 3: 0}
    assert {int(row["meetings"]) for row in rows} == {STEPS}
    assert LATE_MS <= float(_row(rows, rank=LATE)["late_ms"]) < 10 * LATE_MS


def test_step_times(answers: list[Rows]) -> None:
    """Every step after the first takes at least as long as the late rank sleeps; the slowest comes first."""
    rows = answers[2]
    assert {int(row["step"]) for row in rows} >= set(range(1, STEPS))
    assert all(int(row["ranks"]) == 4 for row in rows)
    longest = [float(row["longest_ms"]) for row in rows]
    assert longest == sorted(longest, reverse=True)
    assert min(longest) > LATE_MS * 0.9


def test_slowest_call_sites(archived: Archived, answers: list[Rows]) -> None:
    """The line that is waited for comes first, with the time that `analyze` finds."""
    row = answers[3][0]
    assert (row["file"], int(row["line"]), row["function"]) == (str(COUNTING), ALL_REDUCE_LINE, "<module>")
    assert (row["operation"], int(row["calls"])) == ("all_reduce", 4 * STEPS)
    assert float(row["seconds"]) == pytest.approx(_stats(archived)["time_ns"] / 1e9, rel=0.01)


def test_waiting_and_transfer(archived: Archived, answers: list[Rows]) -> None:
    """Waiting and transfer are those that `analyze` finds on the same archive, and of no collective with a root."""
    assert "broadcast" not in {row["operation"] for row in answers[4]}
    group = _row(answers[0], operation="all_reduce", group_name="default_pg")["group_key"]
    found = _row(answers[4], operation="all_reduce", group_key=group)
    row = _stats(archived)
    assert int(found["calls"]) == row["split"] == 4 * STEPS
    assert float(found["waiting_s"]) == pytest.approx(row["wait_ns"] / 1e9, rel=0.01)
    assert float(found["transfer_s"]) == pytest.approx(row["transfer_ns"] / 1e9, rel=0.05)


def test_the_last_minute(answers: list[Rows]) -> None:
    """Three ranks have stayed in the last all_reduce, and the one that misses it has ended all it called."""
    assert {int(row["rank"]): (int(row["open"]), row["last_operation"]) for row in answers[5]} == {
        0: (1, "all_reduce"), 1: (1, "all_reduce"), 3: (1, "all_reduce"), LATE: (0, "all_reduce"),
    }  # fmt: skip
    assert {int(row["last_sequence"]) for row in answers[5] if int(row["open"])} == {4 * STEPS + 1}


def test_columns(archived: Archived) -> None:
    """The files have the columns and types of the documented tables, and nothing else."""
    for name, columns in TABLES.items():
        described = asked(f"DESCRIBE FROM '{archived.tables}/{name}.parquet'")
        assert [(row[0], row[1]) for row in described] == [(column.name, column.type) for column in columns]


def test_counts_are_those_of_stats(archived: Archived) -> None:
    """Each rank has as many rows as `analyze` counts calls on its tape, and its end is known."""
    document = analyze(archived.tapes, "--json", only="calls").document["calls"]
    query = f"SELECT rank, count(*) FROM '{archived.tables}/operations.parquet' GROUP BY rank ORDER BY rank"
    assert asked(query) == [(row["rank"], row["calls"]) for row in document["ranks"]]
    ends = asked(f"SELECT rank, world_size, operations, lost, state FROM '{archived.tables}/ranks.parquet'")
    assert ends == [(row["rank"], 4, row["calls"], 0, "running") for row in document["ranks"]]


def test_tapes_give_the_same_tables(archived: Archived, tmp_path: Path) -> None:
    """An export of the tapes has the same rows as one of the archive."""
    answer = ask(archived.tapes, "--parquet", tmp_path / "tables", command="export")
    assert (answer.code, answer.err) == (0, "")
    for name in ("operations", "steps", "groups"):
        ours, theirs = (f"'{folder}/{name}.parquet'" for folder in (tmp_path / "tables", archived.tables))
        without = "" if name == "groups" else f"EXCLUDE ({'entered_at' if name == 'operations' else 'ended_at'})"
        both = (f"SELECT * {without} FROM {ours}", f"SELECT * {without} FROM {theirs}")
        for first, second in (both, both[::-1]):
            assert asked(f"{first} EXCEPT ALL {second}") == [], name


def test_other_commands(archived: Archived, tmp_path: Path) -> None:
    """From tapes and from the archive they name the rank that keeps the others waiting, and the groups."""
    for source in ([], [archived.archive]):
        answers = {only: analyze(archived.tapes, *source, "--json", only=only) for only in ("path", "graph", "advice")}
        assert {only: (answer.code, answer.err) for only, answer in answers.items()} == dict.fromkeys(answers, (0, ""))
        path = {one["rank"]: one["on_path_ns"] for one in answers["path"].document["path"]["ranks"]}
        assert max(path, key=path.__getitem__) == LATE and path[LATE] > 0.9 * COUNTED_LATE_NS
        graph = answers["graph"].document["graph"]
        assert [axis["members"] for axis in graph["axes"]] == [[[0, 1, 2, 3]]]
        assert [group["members"] for group in graph["groups"]] == [[[0, 1], [0, 2]]]
        report = analyze(archived.tapes, "--html", tmp_path / "report.html", *source)
        assert (report.code, report.err) == (0, "")


def test_is_timed_in_clickhouse(tmp_path: Path) -> None:
    """In spans a call has a duration where its record has one, however its end and its start on a device are known."""
    tape = FakeTape(tmp_path)
    calls: list[Operation] = []
    for how, started_how in itertools.product([None, *How], [None, *How]):
        tape.run()
        [one] = tape.reader.poll().ended
        started_ns = None if started_how is None else one.entered_ns + 1_000
        known = {"how": how, "started_how": started_how, "started_ns": started_ns, "flags": Flag.ON_DEVICE}
        calls.append(msgspec.structs.replace(one, **known))
    spans = [_span(place, attributes_of_record(one)) for place, one in enumerate(calls)]
    scopes = [{"scope": {"name": "otel_torchdist"}, "spans": spans}]
    lines = tmp_path / "spans.json"
    lines.write_text(json.dumps({"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": scopes}]}))
    question = "SELECT toInt32(file) AS place, ifNull(is_timed, 0) AS timed FROM torchdist_operations ORDER BY place"
    rows = _asked_of_clickhouse(lines, [FOR_CLICKHOUSE[0], question], tmp_path)["1"]
    assert [bool(row["timed"]) for row in rows] == [one.is_timed for one in calls]
    assert 0 < sum(one.is_timed for one in calls) < len(calls)


def _span(place: int, attributes: Mapping[str, object]) -> dict[str, Any]:
    """A call's span as OTLP JSON, with its place in the attribute of the file."""
    named = {semconv.OPERATION: "all_reduce", semconv.CODE_FILE: str(place), **attributes}
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    pairs = [{"key": key, "value": {kinds[type(value)]: value}} for key, value in named.items()]
    times = {"startTimeUnixNano": 10**18, "endTimeUnixNano": 10**18 + 5_000}
    return {"traceId": "1", "spanId": str(place), "name": "all_reduce", "attributes": pairs, **times}
