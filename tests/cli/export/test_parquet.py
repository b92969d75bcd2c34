"""`export --parquet`, and archives as sources of commands: the selection of calls, and errors."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from otel_torchdist.cli.export.parquet import write_parquet
from otel_torchdist.model.kinds import How
from otel_torchdist.model.operations import Operation
from otel_torchdist.runs.tables.schema import TABLES
from otel_torchdist.runs.targets import chosen_archived_run
from otel_torchdist.sources.archive.decoding import Columns
from otel_torchdist.sources.archive.reading import segments_of
from otel_torchdist.sources.archive.writer import ArchiveWriter
from tests.cli.export.conftest import asked
from tests.sources.archive.made import names_beside, operations, segment
from tests.support.commands.asking import Answer, analyze, ask

RUN = 0xABCD << 112


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive with two runs: the newer of two ranks, and one of one rank."""
    names = names_beside(tmp_path)
    folder = tmp_path / "archive"
    writer = ArchiveWriter(folder, 1 << 30)
    for rank in range(2):
        writer.put(segment(operations(1, 100, seed=rank), 101, nonce=rank + 1, rank=rank), names)
    writer.put(segment(operations(1, 30), 31, nonce=9, run_id=RUN), names)
    writer.close(20.0)
    return folder


def export(base: Path, *arguments: str | Path) -> Answer:
    """Run the command."""
    return ask(base, *arguments, command="export")


@pytest.mark.parametrize("is_new", [True, False])
def test_interrupted(tmp_path: Path, archive: Path, is_new: bool) -> None:
    """Ctrl-C while tables are written leaves the folder as it was: missing, or empty."""
    out = tmp_path / "out"
    if not is_new:
        out.mkdir()
    run, _ = chosen_archived_run([archive], "1234")

    def ranks() -> Iterator[Iterator[Columns]]:
        yield segments_of(run.ranks[0], [])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parquet(out, ranks())
    assert out.exists() != is_new
    assert is_new or not list(out.iterdir())


def test_run_is_chosen(base: Path, archive: Path, tmp_path: Path) -> None:
    """With several runs the first digits of an id, or the run's folder, choose one; without them all are listed."""
    answer = export(base, archive, "--parquet", tmp_path / "out")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"otel-torchdist: {archive}: 2 runs: add the first digits of a run's id, or name its ")
    assert "1234abcd (started 2023-11-1" in answer.err and "2 ranks), abcd0000 (started" in answer.err
    assert not (tmp_path / "out").exists()
    answer = export(base, archive, "1234", "--parquet", tmp_path / "out")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"run 1234abcd in {tmp_path}/out: 200 operations, 0 steps, 1 group, 2 ranks; ")
    answer = export(base, next(archive.glob("run-abcd*")), "--parquet", tmp_path / "out")
    assert answer.code == 0, "an earlier export is replaced"
    assert asked(f"SELECT count(*) FROM '{tmp_path}/out/operations.parquet'") == [(30,)]
    assert export(base, archive, "77", "--parquet", tmp_path / "out").err.startswith(
        f"otel-torchdist: {archive}: no run begins with 77; it has 1234abcd (started "
    )


def test_other_commands_take_it(base: Path, archive: Path) -> None:
    """`analyze` reads it; `diagnose` says in one sentence that it does not."""
    document = analyze(base, archive, "1234", "--json", only="calls").document["calls"]
    assert sum(row["calls"] for row in document["ranks"]) == 200
    assert analyze(base, archive, "1234", only="graph").out.startswith("archive of run 1234abcd, started 2023-11-1")
    answer = ask(base, archive)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        f"otel-torchdist: {archive}: an archive, which lacks the state of processes that a verdict is based "
        "on; `otel-torchdist analyze` reads it\n"
    )


def test_ranks(base: Path, archive: Path, tmp_path: Path) -> None:
    """`--ranks` chooses; ranks that are not there are named."""
    answer = export(base, archive, "1234", "--parquet", tmp_path / "out", "--ranks", "1,5")
    assert (answer.code, answer.err) == (0, "otel-torchdist: warning: --ranks: rank 5 has no calls here\n")
    assert asked(f"SELECT DISTINCT rank FROM '{tmp_path}/out/operations.parquet'") == [(1,)]
    answer = export(base, archive, "1234", "--parquet", tmp_path / "out", "--ranks", "5-6")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        "otel-torchdist: warning: --ranks: ranks 5-6 have no calls here\n"
        "otel-torchdist: run 1234abcd: no matching call; nothing was written\n"
    )
    assert asked(f"SELECT DISTINCT rank FROM '{tmp_path}/out/operations.parquet'") == [(1,)]


def test_a_report_on_an_archive(base: Path, archive: Path, tmp_path: Path) -> None:
    """An archive has no state of a hang: a report on it judges nothing, and takes its files for nothing else."""
    answer = analyze(base, "--html", tmp_path / "report.html", archive, "1234")
    assert (answer.code, answer.err) == (0, "")


def test_is_timed(base: Path, tmp_path: Path) -> None:
    """`is_timed` agrees with the record for every way in which start and end can be known."""
    ways = list(itertools.product([None, *How], [None, *How]))
    ended: list[Operation] = []
    for one, (how, started_how) in zip(operations(1, len(ways)), ways, strict=True):
        started_ns = None if started_how is None else one.entered_ns + 70_000
        completed_ns = None if how is None else one.completed_ns
        known = {"how": how, "started_how": started_how, "started_ns": started_ns, "completed_ns": completed_ns}
        ended.append(msgspec.structs.replace(one, **known))
    archive = tmp_path / "archive"
    writer = ArchiveWriter(archive, 1 << 30)
    writer.put(segment(ended, len(ended) + 1), names_beside(tmp_path))
    writer.close(20.0)
    assert export(base, archive, "--parquet", tmp_path / "out").code == 0
    rows = asked(f"SELECT number, is_timed, ended_how FROM '{tmp_path}/out/operations.parquet' ORDER BY number")
    assert rows == [(one.number, one.is_timed, one.how.name.lower() if one.how else None) for one in ended]
    assert 0 < sum(one.is_timed for one in ended) < len(ended)


def test_row_groups(archive: Path, tmp_path: Path) -> None:
    """Few rows are in memory together: each part of a run becomes a row group, and together they are the run."""
    archived, _ = chosen_archived_run([archive], "1234")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    write_parquet(whole, (segments_of(rank, []) for rank in archived.ranks))
    written = write_parquet(parts, (segments_of(rank, []) for rank in archived.ranks), rows_at_once=1)
    sizes = (
        f"SELECT row_group_num_rows FROM parquet_metadata('{parts}/operations.parquet') WHERE path_in_schema = 'rank'"
    )
    assert asked(sizes) == [(100,), (100,)]
    assert written.rows["operations"] == 200
    for name in TABLES:
        assert asked(f"FROM '{parts}/{name}.parquet'") == asked(f"FROM '{whole}/{name}.parquet'")


def test_damaged(base: Path, archive: Path, tmp_path: Path) -> None:
    """Readable segments are written, and a warning names damaged ones."""
    path = next(next(archive.glob("run-abcd*")).rglob("*.segments"))
    path.write_bytes(path.read_bytes() + b"OTDARCH\x01 and then the node failed")
    answer = export(base, path, "--parquet", tmp_path / "out")
    assert answer.code == 0
    assert answer.err == (
        f"otel-torchdist: warning: {path}: its last segment is cut off: 33 bytes at its end are skipped\n"
    )
    path.write_bytes(b"OTDARCH\x01")
    answer = export(base, path, "--parquet", tmp_path / "out")
    assert answer.code == 2
    assert answer.err.endswith(f"{path}: an archive without a readable segment\n")


def test_foreign_files(base: Path, archive: Path, tmp_path: Path) -> None:
    """A folder with files of others is left alone, unless --force is given, which leaves those files alone."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    answer = export(base, archive, "1234", "--parquet", out)
    assert (answer.code, list(out.iterdir())) == (73, [out / "thesis.tex"])
    assert answer.err == (
        f"otel-torchdist: {out}: it holds files of other programs (thesis.tex); name another folder, or use "
        "--force, which leaves other files alone\n"
    )
    assert export(base, archive, "1234", "--parquet", out, "--force").code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "groups.parquet", "operations.parquet", "ranks.parquet", "steps.parquet", "thesis.tex",
    ]  # fmt: skip
    (tmp_path / "file").write_text("")
    answer = export(base, archive, "1234", "--parquet", tmp_path / "file")
    assert (answer.code, answer.err) == (73, f"otel-torchdist: {tmp_path}/file: Not a directory\n")


def test_without_pyarrow(base: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow one sentence names the extra."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = export(base, archive, "1234", "--parquet", tmp_path / "out")
    assert (answer.code, answer.out) == (69, "")
    assert answer.err == "otel-torchdist: --parquet needs pyarrow: pip install 'otel-torchdist[analysis]'\n"


def test_what_is_no_archive(base: Path, tmp_path: Path) -> None:
    """A folder without segments is named, and so is an archive where tapes are needed."""
    (tmp_path / "notes.txt").write_text("nothing")
    answer = export(base, tmp_path, "--parquet", tmp_path / "out")
    assert (answer.code, answer.err) == (
        2, f"otel-torchdist: {tmp_path}: not an archive; --parquet reads archives and tapes\n",
    )  # fmt: skip
