"""The page on leftovers compares with `torchfrtrace`: both tools run here on the same files, and the table is right."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from tests.cli.export.torchfrtrace import Analysis, analyze, why_not
from tests.cli.gloo_jobs import GlooJobs
from tests.sources.flight.test_real_jobs import DATA, faulty
from tests.support.commands.asking import Answer, ask
from tests.support.commands.running import SCRIPT, environment
from tests.support.documented import block_after, commands_of, page
from tests.support.launch.warm_python import WarmPython
from tests.support.waiting import until

WORKER: Final = Path(__file__).parent / "workers" / "dumping.py"
PAGE: Final = page("leftovers.md")
RANKS: Final = 4
LATE: Final = 2
INCOMPLETE: Final = "--allow-incomplete-ranks"
pytestmark = pytest.mark.process
_COMPARED: Final = PAGE.partition("### Compared with")[2].partition("\n(")[0]
_TORCH: Final = re.findall(r"torch (\d+)\.(\d+)", _COMPARED)


@pytest.fixture(scope="module")
def gloo(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a job of gloo has left `dumps`, with the page's snippet, and `json`."""
    folder = tmp_path_factory.mktemp("gloo")
    for name in ("dumps", "json"):
        (folder / name).mkdir()
    snippet = folder / "snippet.py"
    snippet.write_text(block_after(PAGE, "**gloo** records too"))
    environ = {
        "OTEL_PYTHON_TORCHDIST_ENABLED": "false",
        "TORCH_FR_BUFFER_SIZE": "2000",
    }  # torch 2.8 records with it only
    job = GlooJobs(
        warm_python, folder, folder / "job", "hangs", str(folder), str(snippet), environ=environ, worker=WORKER
    )
    try:
        until(lambda: len(list(folder.glob("json/rank_*"))) == RANKS, 60)
        yield folder
    finally:
        job.close(ends_s=0.0)


def diagnosed(folder: Path) -> str:
    """What `diagnose` finds, as the table writes it."""
    answer = ask(Path("/nonexistent"), "--json", "--world-size", "0", folder)
    assert answer.code == 1
    document = answer.document
    silent = [f"rank {rank} has no dump; " for rank in document["coverage"]["unknown"]]
    [verdict] = document["verdicts"]
    return f"{''.join(silent)}`{verdict['kind']}`: {', '.join(map(str, verdict['ranks']))}"


def analyzed(analysis: Analysis) -> str:
    """What `torchfrtrace` finds, as the table writes it."""
    if analysis.error:
        return f"`{analysis.error.partition(':')[0]}`"
    findings = re.findall(r"missing ranks: \{([\d, ]+)\}", analysis.log)
    named = sorted({int(rank) for ranks in findings for rank in ranks.split(",")})
    return f"{len(findings)} findings that name {', '.join(map(str, named))}"


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.skipif(
    tuple(map(int, version("torch").split(".")[:2])) < tuple(map(int, _TORCH[0])),
    reason=f"the page compares with torch {'.'.join(_TORCH[0])}",
)
def test_table(warm_python: WarmPython, gloo: Path, tmp_path: Path) -> None:
    """Each row has what the two tools find in the same files today, and who was at fault."""
    incomplete = Path(shutil.copytree(DATA / "lock_gil_1st", tmp_path / "incomplete"))
    (incomplete / "_dump_3").unlink()
    held, broken = DATA / "lock_gil_1st", DATA / "gpu_error_1st"
    folders = [held, broken, incomplete, gloo / "dumps", gloo / "json"]
    found = dict(zip(folders, analyze(warm_python, tmp_path / "analyses", folders), strict=True))
    [allowed] = analyze(warm_python, tmp_path / "allowed", [incomplete], INCOMPLETE)
    at_fault: Mapping[Path, set[int]] = {
        held: faulty(held.name),
        broken: faulty(broken.name),
        incomplete: faulty(held.name),
        gloo / "dumps": {LATE},
        gloo / "json": {LATE},
    }
    rows = [
        (", ".join(map(str, sorted(at_fault[folder]))), analyzed(found[folder]), diagnosed(folder))
        for folder in folders
    ]
    rows[2] = (rows[2][0], f"{rows[2][1]}; with `{INCOMPLETE}` {analyzed(allowed)}", rows[2][2])
    on_page = [tuple(cell.strip() for cell in line.split("|")[2:-1]) for line in _COMPARED.splitlines() if "|" in line]
    script = [str(SCRIPT.with_name("torchfrtrace")), str(held)]
    code = subprocess.run(script, env=environment(tmp_path), capture_output=True, timeout=60, check=False).returncode
    assert [*rows, ("", str(code), "1 if there is a verdict")] == on_page[2:]


def test_snippet(gloo: Path) -> None:
    """What the page's snippet writes is enough for its command to find the rank."""
    [command] = [command for command in commands_of(PAGE) if command.endswith(" gloo/")]
    words = command.replace("gloo/", str(gloo / "dumps")).split()
    answer: Answer = ask(Path("/nonexistent"), *words[2:], command=words[1])
    assert answer.code == 1
    assert answer.has(rf"verdict  rank {LATE} has not entered all_reduce .*")
