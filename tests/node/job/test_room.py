"""How much of a small file system tapes take: so little that the program's own shared memory fits beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.model.names import MAX_BYTES
from otel_torchdist.node.job.room import ranks_of_node, tape_limits
from tests.support.small_file_system import report_of

pytestmark = pytest.mark.process

MB = 1 << 20


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What eight ranks take of 64 MB, the size of a container's `/dev/shm`; in a namespace of its own."""
    return report_of(Path(__file__).with_name("small_memory.py"), tmp_path_factory.mktemp("small"))


def test_job_takes_an_eighth(report: dict[str, Any]) -> None:
    """Ranks that start one after the other get tapes of one size, and take an eighth, full dictionaries included."""
    first = report["first"]
    assert len(set(first["records"])) == 1
    assert 5_000 < first["records"][0] < 16_384
    assert 7 * MB < first["taken"] <= 8 * MB


def test_leftovers_make_room(report: dict[str, Any]) -> None:
    """After four such jobs no more than a quarter is taken, and the job before the present one is still there."""
    assert report["most"] <= 16 * MB
    assert report["jobs"] == [3, 4]
    assert report["last_records"] == report["first"]["records"]


def test_another_job_beside(report: dict[str, Any]) -> None:
    """A job that finds no space left by the running one gets small tapes rather than none."""
    assert set(report["beside"]) == {512}


def test_warning(report: dict[str, Any]) -> None:
    """One warning names the setting, its value, the place and what is used instead, however often a job restarts."""
    [warning] = report["warnings"]
    assert "OTEL_PYTHON_TORCHDIST_TAPE_RECORDS=16384" in warning
    assert "a file system of 64 MB" in warning
    assert f"Using {report['recorded']} records" in warning


def test_where_there_is_room(memory: Path) -> None:
    """In a file system of the usual size every rank gets what is wanted."""
    found = tape_limits(memory / "job-0000000000000001", 16_384, 8)
    assert (found.records, found.names_bytes) == (16_384, MAX_BYTES)


@pytest.mark.parametrize(
    ("environ", "world", "ranks"),
    [
        ({"LOCAL_WORLD_SIZE": "8"}, 64, 8),
        ({"LOCAL_WORLD_SIZE": "8"}, 2, 2),
        ({"LOCAL_WORLD_SIZE": "many", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 64, 4),
        ({"LOCAL_WORLD_SIZE": "0"}, 4, 4),
        ({}, 4, 4),
        ({}, 4096, 16),
    ],
)
def test_ranks_of_node(environ: dict[str, str], world: int, ranks: int) -> None:
    """A launcher states how many ranks share the node; without one all are assumed here, up to a node's maximum."""
    assert ranks_of_node(environ, world) == ranks
