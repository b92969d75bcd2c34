"""The tables of a run: what they hold, and that other libraries take them without a copy."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.runs import Table, as_table, open_run
from otel_torchdist.runs.tables.schema import API_TABLES
from tests.runs.conftest import STEPS, RecordedJobs
from tests.support.commands.asking import ask

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.process


def test_what_they_hold(jobs: RecordedJobs) -> None:
    """Calls, steps, activities, groups and ranks are those that the program made."""
    run = jobs.before
    calls = run.calls.to_arrow().to_pylist()
    reduced = [row for row in calls if row["operation"] == "all_reduce"]
    assert len(reduced) == 2 * 2 * STEPS  # weight and bias, on two ranks
    assert {(row["file"].rpartition("/")[2], row["function"]) for row in reduced} == {("stepping.py", "<module>")}
    assert {row["message_bytes"] for row in reduced} == {64 * 64 * 4, 64 * 4}
    assert all(row["is_timed"] and row["duration_ns"] > 0 for row in reduced)
    steps = run.steps.to_arrow().to_pylist()
    assert [row["step"] for row in steps] == [*range(STEPS)] * 2
    assert [row["duration_ns"] is None for row in steps] == [step == 0 for step in range(STEPS)] * 2
    ends = [row["ended_ns"] for row in steps if row["rank"] == 0]
    assert [row["duration_ns"] for row in steps if row["rank"] == 0][1:] == [
        later - sooner for sooner, later in itertools.pairwise(ends)
    ]
    activities = run.activities.to_arrow().to_pylist()
    optimizers = [row for row in activities if row["kind"] == "optimizer step"]
    assert len(optimizers) == 2 * STEPS and {row["detail"] for row in optimizers} == {"SGD"}
    assert {row["description"] or row["name"] for row in run.groups.to_arrow().to_pylist()} >= {"replicas"}
    ranks = run.ranks.to_arrow().to_pylist()
    assert [(row["rank"], row["state"], row["run_id"]) for row in ranks] == [
        (rank, "finished", run.run_id) for rank in (0, 1)
    ]


def test_tapes_and_archive_agree(jobs: RecordedJobs) -> None:
    """The archive of a run has the same tables as its tapes."""
    assert jobs.runs[0].id is not None
    archived = open_run(jobs.archive, jobs.runs[0].id)
    for name in ("calls", "steps", "activities", "groups"):
        assert getattr(archived, name).to_arrow().equals(getattr(jobs.before, name).to_arrow()), name


def test_they_agree_with_the_export(jobs: RecordedJobs, tmp_path: Path) -> None:
    """`export --parquet` writes the same rows."""
    assert jobs.runs[0].id is not None
    answer = ask(jobs.tapes, jobs.runs[0].id, "--parquet", tmp_path / "out", command="export")
    assert answer.code == 0, answer.err
    parquet = pytest.importorskip("pyarrow.parquet")
    for table, name in (
        (jobs.before.calls, "operations"),
        (jobs.before.steps, "steps"),
        (jobs.before.groups, "groups"),
    ):
        assert parquet.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() == table.to_arrow().to_pylist()


def test_each_column_has_a_meaning(jobs: RecordedJobs) -> None:
    """The columns of each table are the schema's, with their meanings, also if there is no row."""
    for run in (jobs.before, open_run(Path(__file__).parents[1] / "sources" / "flight" / "data" / "gpu_error_1st")):
        for name, columns in API_TABLES.items():
            table: Table = getattr(run, "calls" if name == "operations" else name)
            assert table.columns == tuple(column.name for column in columns) == tuple(table.meanings)


def _addresses(table: Any) -> set[int]:
    """The addresses of the buffers of numbers."""
    chunks = [chunk for name in ("entered_ns", "sequence") for chunk in table.column(name).chunks]
    return {chunk.buffers()[1].address for chunk in chunks}


def test_pyarrow_shares_the_memory(jobs: RecordedJobs) -> None:
    """A table goes to pyarrow through its capsule, and the columns lie at the same addresses."""
    calls = jobs.before.calls
    taken = pa.table(calls)
    assert taken.equals(calls.to_arrow())
    assert _addresses(taken) == _addresses(calls.to_arrow())
    assert pa.schema(calls) == calls.to_arrow().schema


def test_polars(jobs: RecordedJobs) -> None:
    """A table goes to polars, which counts the calls that the program made."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(jobs.before.calls)
    assert frame.shape == (len(jobs.before.calls), len(jobs.before.calls.columns))
    counted = dict(frame.group_by("operation").len().rows())
    assert counted["all_reduce"] == 4 * STEPS


def test_pandas(jobs: RecordedJobs) -> None:
    """A table goes to pandas, which groups its rows."""
    pandas = pytest.importorskip("pandas", minversion="3")
    steps = pandas.DataFrame.from_arrow(jobs.before.steps)
    assert steps.groupby("rank")["duration_ns"].count().to_dict() == {0: STEPS - 1, 1: STEPS - 1}


def test_duckdb(jobs: RecordedJobs) -> None:
    """DuckDB queries a table by the name of its variable, and joins two tables."""
    duckdb = pytest.importorskip("duckdb")
    calls, groups = jobs.before.calls, jobs.before.groups
    assert (len(calls), len(groups)) > (0, 0)
    with duckdb.connect() as connection:
        rows = connection.sql(
            "SELECT count(*) FROM calls JOIN groups USING (group_key) WHERE description = 'replicas' AND size = 2"
        ).fetchall()
    assert rows[0][0] >= 4 * STEPS


def test_structs_as_tables(jobs: RecordedJobs) -> None:
    """Structs become rows: fields of inner structs have joined names, maps are lists of pairs."""
    rows = jobs.before.statistics(by="operation,group,rank").rows
    table = as_table(rows)
    assert {"operation", "group_key", "group_members", "rank", "median_ns"} <= {*table.columns}
    first = table.to_arrow().to_pylist()[0]
    assert (first["operation"], first["group_name"]) == (rows[0].operation, rows[0].group and rows[0].group.name)
    assert first["calls_by_rank"] == [{"key": key, "value": value} for key, value in rows[0].calls_by_rank.items()]
    assert len(as_table([])) == 0


def test_structs_are_those_of_json(jobs: RecordedJobs) -> None:
    """The analysis is the document of `analyze --json`, and the diagnosis that of `diagnose --json`."""
    import msgspec

    run, run_id = jobs.before, jobs.runs[0].id
    assert run_id is not None
    printed = ask(jobs.tapes, run_id, "--json", command="analyze").document
    own = json.loads(msgspec.json.encode(run.analysis))
    assert own["path"] == printed["path"] and own["graph"] == printed["graph"] and own["advice"] == printed["advice"]
    assert sorted(own["calls"]["rows"], key=str) == sorted(printed["calls"]["rows"], key=str)
    diagnosed, judged = ask(jobs.tapes, run_id, "--json").document, json.loads(msgspec.json.encode(run.diagnose()))
    assert (judged["verdict"], judged["ranks"], judged["run"]) == (
        diagnosed["verdict"],
        diagnosed["ranks"],
        diagnosed["run"],
    )


def test_unknown_property(jobs: RecordedJobs) -> None:
    """A word that is no property of rows is named, with the properties."""
    with pytest.raises(ValueError, match="'host': a list of operation, group, size, site, rank, phase is expected"):
        jobs.before.statistics(by=["operation", "host"])


def test_html(jobs: RecordedJobs, tmp_path: Path) -> None:
    """A notebook shows a run and the first rows of a table, without scripts; names of a job are escaped."""
    html = jobs.before.calls._repr_html_()
    assert html.count("<tr>") == 11 and f"and {len(jobs.before.calls) - 10:,} more rows" in html
    assert "&lt;module&gt;" in html and "<module>" not in html and "<script" not in html
    assert f"tapes: {jobs.runs[0].directory}" in jobs.before._repr_html_()
