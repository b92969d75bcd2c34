"""Commands on a bundle of evidence, compared with the same commands on the job directory in it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.node.job.bundled import FORMAT, BundleManifest
from otel_torchdist.sources.bundles.content import BundleContent
from otel_torchdist.sources.bundles.folder import BundleFolder
from tests.cli.gloo_jobs import CALLING_LINE, GlooJobs, await_signs_of_life
from tests.support.commands.asking import ask
from tests.support.tapes.directories import memory_directory


def bundle_of(jobs: GlooJobs, folder: Path, reason: str = "end") -> Path:
    """A bundle of the only job directory of these jobs, as it is now."""
    [directory] = jobs.base.glob("job-*")
    return BundleFolder(folder, 1 << 30).write(BundleContent(directory, BundleManifest(FORMAT, "", "", reason)))


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """The base directory of a machine without jobs."""
    with memory_directory() as path:
        yield path


def comparable(document: Any) -> Any:
    """A document without paths, and without ages and times, which grow while a job hangs."""
    if isinstance(document, list):
        return [comparable(each) for each in document]
    if isinstance(document, str):
        return re.sub(r"\d[\d.]* (ms|s|min)\b", "N", document)
    if not isinstance(document, dict):
        return document
    skipped = ("tape", "last_sign_of_life")
    kept = {key: value for key, value in document.items() if key not in skipped and not key.endswith(("_s", "_at"))}
    return {key: comparable(value) for key, value in kept.items()}


def test_hanging_job(hung: GlooJobs, elsewhere: Path, tmp_path: Path) -> None:
    """While the job hangs, a bundle gives the diagnosis of that moment: verdict, states, operations and lines."""
    path = bundle_of(hung, tmp_path / "bundles", "verdict")
    live, bundled = ask(hung.base, "--json"), ask(elsewhere, path, "--json")
    assert (live.code, bundled.code, bundled.err) == (1, 1, "")
    assert bundled.document["run"]["directory"] == str(path)
    assert not bundled.document["moment"]["is_now"]
    assert bundled.document["verdict"]["kind"] == "absent"
    assert comparable(bundled.document["verdict"]) == comparable(live.document["verdict"])
    assert [rank["life"] for rank in bundled.document["ranks"]] == ["running"] * 4
    assert comparable(bundled.document["ranks"]) == comparable(live.document["ranks"])
    text = ask(elsewhere, path)
    assert text.has(r"as of the bundle, .* ago: ranks 0-3 are running")
    assert text.has(r"rank 2  absent  step 5  last sign of life .* earlier\)  pid \d+")
    assert f"training.py:{CALLING_LINE}" in text.out


def test_stopped_rank(hung: GlooJobs, elsewhere: Path, tmp_path: Path) -> None:
    """A process that goes on living after the bundle does not matter, even with the pids of this machine."""
    path = bundle_of(hung, tmp_path / "bundles", "verdict")
    before = ask(elsewhere, path, "--json").document
    os.kill(hung.pid_of(1), signal.SIGSTOP)
    try:
        after = ask(elsewhere, path, "--json").document
    finally:
        os.kill(hung.pid_of(1), signal.SIGCONT)
    assert after == before


def test_newest_in_folder(hung: GlooJobs, elsewhere: Path, tmp_path: Path) -> None:
    """In a folder the newest bundle is read, and named; a run can be chosen; several bundles at once are refused.

    After a stall that has resolved, the newest bundle is that of the end, and a note names the one of the stall.
    """
    path = bundle_of(hung, tmp_path / "bundles")
    old = path.with_name(path.name.replace("-bundle-2", "-bundle-1"))
    old.write_bytes(path.read_bytes())
    (path.parent / "torchdist-bundle-9-broken.tar.gz").write_bytes(b"\x1f\x8b")
    answer = ask(elsewhere, path.parent)
    assert answer.err == f"otel-torchdist: the newest bundle: {path}\n"
    assert answer.code == 1
    judged = old.with_name(old.name.replace("-end-", "-verdict-absent-df26a2d0-"))
    judged.write_bytes(old.read_bytes())
    answer = ask(elsewhere, path.parent)
    note = f"otel-torchdist: the newest of this run with a verdict: {judged}\n"
    assert answer.err == f"otel-torchdist: the newest bundle: {path}\n{note}"
    other = ask(elsewhere, path.parent, "feed")
    assert (other.code, other.err) == (2, f"otel-torchdist: {path.parent}: no bundle of a run that begins with feed\n")
    both = ask(elsewhere, path, old)
    assert both.code == 2
    assert "a bundle of evidence is read alone" in both.err


def test_table_of_the_moment(hung: GlooJobs, elsewhere: Path, tmp_path: Path) -> None:
    """`watch --replay` shows the table of ranks at the moment of the bundle, and ends."""
    path = bundle_of(hung, tmp_path / "bundles")
    answer = ask(elsewhere, path, "--replay", command="watch", COLUMNS="160")
    assert answer.code == 0
    assert answer.has(r"as of .* s ago")
    assert answer.has(r" +2 +absent .*")
    assert "rank 2 has not entered all_reduce" in answer.out
    assert ask(elsewhere, Path(__file__), "--replay", command="watch").code == 2


def test_dead_job(hung: GlooJobs, elsewhere: Path, tmp_path: Path) -> None:
    """After the end, every command prints of a bundle what it prints of the job directory."""
    await_signs_of_life(hung.base)
    hung.kill()
    path = bundle_of(hung, tmp_path / "bundles")
    [directory] = hung.base.glob("job-*")

    def outputs(target: list[str | Path], base: Path, name: str) -> dict[str, Any]:
        timeline, dumps = tmp_path / f"{name}.json", tmp_path / name
        statistics = json.loads(ask(base, *target, "--json", command="analyze").out)
        diagnosis = ask(base, *target, "--json").document
        assert ask(base, *target, "--perfetto", timeline, command="export").code == 0
        assert ask(base, *target, "--flight-recorder", dumps, command="export").code == 0
        return {
            "diagnose": diagnosis,
            "analyze": statistics,
            "calls": ask(base, *target, "--only", "calls", "--csv", command="analyze").out,
            "reproduce": ask(base, *target, command="reproduce").out,
            "timeline": timeline.read_bytes(),
            "dumps": {file.name: file.read_bytes() for file in dumps.iterdir()},
        }

    live, bundled = outputs([directory], hung.base, "live"), outputs([path], elsewhere, "bundled")
    assert live["reproduce"].startswith("# A reproducer")
    assert len(live["dumps"]) == 4
    for name in ("diagnose", "analyze"):
        text = json.dumps(bundled[name]).replace(str(path), str(directory))
        assert json.loads(text) == live[name], name
    for name in ("calls", "reproduce", "timeline", "dumps"):
        assert bundled[name] == live[name], name
