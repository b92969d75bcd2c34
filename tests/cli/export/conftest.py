"""Fixtures of the tests of `export`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.cli.gloo_jobs import COUNTING, GlooJobs
from tests.support.commands.asking import analyze, ask
from tests.support.commands.running import kill_processes_of, processes_of
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import until


@dataclass(frozen=True)
class Archived:
    """A job of four ranks whose rank 2 was late for ten `all_reduce` and missed one, until all ranks were killed.

    Attributes:
        archive: Its archive.
        spans: Its spans, as lines of OTLP JSON.
        tapes: Base directory of its tapes.
        tables: Its archive as tables of Parquet.
        kernel: What has recorded it: `python` or `native`.
    """

    archive: Path
    spans: Path
    tapes: Path
    tables: Path
    kernel: str


@pytest.fixture(scope="module", params=KERNELS)
def archived(
    request: pytest.FixtureRequest, warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Archived]:
    """A job whose archive and spans an agent of its own has written, and which was killed with all of its ranks."""
    folder = tmp_path_factory.mktemp("archived")
    archive, spans, tables = folder / "archive", folder / "spans.json", folder / "tables"
    environ = {
        "OTEL_PYTHON_TORCHDIST_ARCHIVE": str(archive),
        "OTEL_TRACES_EXPORTER": "torchdist_otlp_json",
        "OTEL_PYTHON_TORCHDIST_OTLP_FILE": str(spans),
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "60000",
        **environ_of(request.param),
    }
    with memory_directory() as base:
        job = GlooJobs(warm_python, base, folder, "misses one", reader="agent", worker=COUNTING, environ=environ)
        try:
            until(lambda: job.all_are_there() and _open_calls(base) == 3, 60)
            job.kill()
            until(lambda: not processes_of(base), 60)
            answer = ask(base, archive, "--parquet", tables, command="export")
            assert (answer.code, answer.err) == (0, ""), answer.err
            yield Archived(archive, spans, base, tables, request.param)
        finally:
            job.close()
            kill_processes_of(base)


def asked(query: str) -> list[tuple[Any, ...]]:
    """What DuckDB answers to a query."""
    relation = duckdb.sql(query)
    assert relation is not None
    return relation.fetchall()


def _open_calls(base: Path) -> int:
    rows = analyze(base, "--json", only="calls").document["calls"]["rows"]
    return sum(row["open"] for row in rows)
