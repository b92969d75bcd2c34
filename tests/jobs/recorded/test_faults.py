"""Every fault that gloo's flight recorder can show, diagnosed from the dumps of ranks that are not instrumented."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from otel_torchdist.analysis.reproducer.plan import plan
from otel_torchdist.analysis.reproducer.source import source_of
from otel_torchdist.cli.reproduce import evidence_of_dumps
from otel_torchdist.config import Config
from tests.analysis.reproducer.rehearsal import verdict_on
from tests.jobs.recorded.recorded_jobs import RecordedFault, RecordedJobs
from tests.support.commands.asking import Answer, ask
from tests.support.launch.warm_python import WarmPython

FAULTS: Final = (
    RecordedFault("late", "absent", (2,), (2,)),
    RecordedFault("kill_with_child", "unknown", (), (2,), silent=(2,)),
    RecordedFault("stop", "unknown", (), (2,), silent=(2,)),
    RecordedFault("gil_blocked", "unknown", (), (2,), silent=(2,)),
    RecordedFault("operation", "mismatched", (2,), (2,)),
    RecordedFault("skipped", "mismatched", (2,), (2,)),
    RecordedFault("loader", "absent", (2,), (2,)),
    RecordedFault("pairs_in_circle", "circular", (0, 1, 2), (0, 1, 2)),
    RecordedFault("two_pairs", "absent", (1, 3), (1, 3), size=4),
)
"""Left out: shape, dtype (gloo ends the process, before anyone could request a dump), root, recv, new_group, rendezvous
(not recorded)."""


@pytest.fixture(scope="module")
def dumps(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the dumps of each fault."""
    folder = tmp_path_factory.mktemp("recorded")
    jobs = RecordedJobs(warm_python, folder, FAULTS)
    try:
        jobs.wait_for_dumps()
        yield folder
    finally:
        jobs.kill()


def diagnosed(*arguments: str | Path) -> Answer:
    """What `diagnose` makes of files."""
    return ask(Path("/nonexistent"), *arguments)


def named(document: dict[str, Any]) -> set[int]:
    """The ranks that any verdict names."""
    return {rank for verdict in document["verdicts"] for rank in verdict["ranks"]}


@pytest.mark.parametrize("kind", ["pickle", "json"])
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_fault(dumps: Path, tmp_path: Path, fault: RecordedFault, kind: str) -> None:
    """Pickles and JSON alike: all ranks at fault are named, and no others."""
    folder = tmp_path / "dumps"
    shutil.copytree(dumps / fault.name / "dumps" / ("as_json" if kind == "json" else "."), folder)
    shutil.rmtree(folder / "as_json", ignore_errors=True)
    answer = diagnosed(folder, "--json", "--world-size", str(fault.size))
    document = answer.document
    assert (answer.code, answer.err, document["warnings"]) == (1, "", [])
    assert document["verdict"]["kind"] == fault.verdict, document["verdict"]["sentence"]
    assert named(document) == {*fault.ranks}
    assert tuple(document["coverage"]["unknown"]) == fault.silent
    assert fault.is_named


def test_sentence_and_line(dumps: Path) -> None:
    """With stacks the report names the line; it says once that no dump states its time, and nothing of liveness."""
    answer = diagnosed(*(dumps / "late" / "dumps" / f"rank_{rank}" for rank in range(3)))
    assert answer.code == 1
    assert answer.has(r"verdict  rank 2 has not entered all_reduce \(sequence 6, default_pg\) for up to 2 min 0 s; .*")
    assert answer.has(r"  in     all_reduce .* of ranks 0-2 for 2 min 0 s, called in late at faulty\.py:\d+")
    assert answer.out.count("the time of the dumps is not recorded") == 1
    for word in ("alive", "running", "heartbeat", "dead", "pid", "sign of life", "have not run"):
        assert word not in answer.out


def test_ranks_without_a_dump_come_first(dumps: Path) -> None:
    """A rank that wrote no dump is named before anything else, and no other rank is blamed for it."""
    answer = diagnosed(dumps / "stop" / "dumps" / "rank_0", dumps / "stop" / "dumps" / "rank_1", "--world-size", "3")
    assert answer.out.startswith("rank 2 has no dump here\n")
    assert answer.has(
        r"verdict  all_reduce .* 2 of 3 ranks wait\. 2 of 3 ranks report\n  next   find the ranks that do not report.*"
    )


def test_without_world_size(dumps: Path) -> None:
    """The recorder of gloo does not say how many ranks there are: then ranks that all wait are not a verdict on any."""
    answer = diagnosed(dumps / "stop" / "dumps", "--json")
    assert answer.document["verdict"]["doubt"] == "its members are not recorded, and all that are known have entered it"


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.verdict != "unknown"], ids=lambda fault: fault.name
)
def test_script(dumps: Path, fault: RecordedFault) -> None:
    """The script that `reproduce` writes from the dumps has the verdict of the dumps, when run without processes."""
    files = [dumps / fault.name / "dumps" / f"rank_{rank}" for rank in range(fault.size)]
    evidence = evidence_of_dumps(Config.from_environment({}), files, fault.size, None)
    script = plan(evidence.verdict, evidence.world, evidence.histories, evidence.origin)
    compile(source_of(script, "hang.py"), "hang.py", "exec")
    verdict = verdict_on(script)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (evidence.verdict.kind, script.named)
    assert {rank for place in script.named for rank in script.stand_for[place]} == {*evidence.verdict.ranks}
