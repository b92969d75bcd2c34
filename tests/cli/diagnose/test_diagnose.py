"""`otel-torchdist diagnose` over real jobs on gloo: live, finished, failed and killed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.gloo_jobs import CALLING_LINE, GlooJobs, await_signs_of_life
from tests.support.commands.asking import ask, ask_as_people_do
from tests.support.waiting import until

SITE = r"all_reduce \(sequence 6, default_pg\)"
CALL = rf"called in <module> at training\.py:{CALLING_LINE}"


def test_living_and_killed_in_a_collective(gloo_by_kernel: Callable[..., GlooJobs]) -> None:
    """The verdict on a hanging job names the late rank; once all ranks are killed, so does that on its last moment."""
    job = gloo_by_kernel("is late")
    verdict = (
        rf"rank 2 has not entered {SITE} for [\d.]+ s; it .*; 3 of 4 ranks wait in <module> at training\.py:\d+(\. .*)?"
    )
    until(lambda: ask(job.base).has(f"verdict  {verdict}"), 60)
    await_signs_of_life(job.base)
    living = ask(job.base)
    assert living.code == 1
    assert living.has(r"as of now, [\d:.]+: ranks 0-3 are running")
    assert living.has(rf"  in     {SITE} of ranks 0-3 for [\d.]+ s, {CALL}")
    assert living.out.count("  in     ") == 3

    job.kill()
    dead = ask_as_people_do(job.base, "diagnose", "--threshold", "1")
    assert (dead.code, dead.err) == (1, "")
    assert "\x1b" not in dead.out
    assert dead.has(rf"verdict  {verdict}")
    assert dead.has(
        r"as of the last sign of life, [-\d]+ [\d:]+, [\d.]+ m?s ago: "
        r"ranks 0-3 are dead: their processes are gone without a word"
    )
    assert dead.has(rf"  in     {SITE} of ranks 0-3 for [\d.]+ s, {CALL}")


@pytest.mark.thorough
def test_one_dies_first(gloo_by_kernel: Callable[..., GlooJobs]) -> None:
    """A rank that dies before a collective is blamed if the others die waiting in it or after an exception in it."""
    job = gloo_by_kernel("dies")

    def is_silent() -> bool:
        answer = ask(job.base, "--json")
        ranks = answer.document["ranks"] if answer.out else []
        # Its last heartbeat is clearly older than those of the others.
        return any(one["rank"] == 2 and one["life"] == "dead" and one["silent_s"] > 2 for one in ranks)

    until(is_silent, 60)
    job.kill()
    text, as_json = ask(job.base), ask(job.base, "--json")
    assert text.has(rf"verdict  rank 2 is dead, and {SITE} has been blocked for .*[Tt]he process of rank 2 is gone.*")
    assert text.has(rf"  last   {SITE} of ranks 0-3 failed with RuntimeError [\d.]+ m?s earlier, after .*, {CALL}")
    assert (text.code, as_json.code) == (1, 1)
    verdict, ranks = as_json.document["verdict"], as_json.document["ranks"]
    found = (verdict["kind"], verdict["ranks"], verdict["operation"], verdict["sequence"])
    assert found == ("dead", [2], "all_reduce", 6)
    assert verdict["sentence"].replace(". next: ", "\n  next   ") in text.out
    assert [rank["life"] for rank in ranks] == ["dead"] * 4
    assert min(ranks, key=lambda rank: rank["last_sign_of_life"])["rank"] == 2
    for rank in (0, 1, 3):
        [inside] = [one for one in (*ranks[rank]["open"], ranks[rank]["last_finished"]) if one["sequence"] == 6]
        found = (inside["operation"], inside["peers"], inside["call_site"]["line"])
        assert found == ("all_reduce", [0, 1, 2, 3], CALLING_LINE)


def test_failed(gloo_by_kernel: Callable[..., GlooJobs]) -> None:
    """The rank that raised is blamed, with its exception, and not those that were interrupted by its end."""
    job = gloo_by_kernel("fails")
    job.join()
    answer = ask(job.base)
    assert answer.code == 1
    assert answer.has(rf"verdict  rank 2 ended with ValueError, and {SITE} has been blocked for .*")
    assert answer.has("rank 2  failed with ValueError  step 5 .*")
    assert answer.has("rank 0  failed with RuntimeError  step 5 .*")


def test_two_finished_jobs(gloo_by_kernel: Callable[..., GlooJobs]) -> None:
    """Two jobs at once are two runs, each found by its id; both are fine; the shell completes the ids."""
    jobs = gloo_by_kernel("is punctual", ranks=2, jobs=2)
    base = jobs.base
    assert [one.code for one in jobs.join()] == [0] * 4
    listed = ask(base, "--list", "--json").document["runs"]
    newest = listed
    assert [(run["ranks"], run["world_size"]) for run in newest] == [([0, 1], 2)] * 2
    table = ask(base, "--list")
    for run in newest:
        answer = ask(base, run["id"][:6])
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith(f"run {run['id'][:8]}, started ")
        assert f"\n{run['directory']}\n" in answer.out
        assert answer.has("no verdict  no operation was open for 1 s, and no rank was left behind in one")
        assert answer.has(r"  last   all_reduce \(sequence 12, default_pg\) of ranks 0-1 ended .*")
        assert re.search(
            rf" {run['id'][:8]} +[-\d]+ [:\d]+ +finished +0-1 +2 +{Path(run['directory']).name}", table.out
        )
    assert ask(base).out.startswith(f"run {newest[0]['id'][:8]}, started ")
    watched = ask(base, newest[1]["id"][:6], command="watch")
    assert watched.code == 0
    assert watched.out.endswith("the job has ended: ranks 0-1 have finished\n")

    typed = {
        "_OTEL_TORCHDIST_COMPLETE": "complete_bash",
        "COMP_WORDS": f"otel-torchdist diagnose {newest[0]['id'][:6]}",
        "COMP_CWORD": "2",
    }
    assert ask_as_people_do(base, **typed).out.split() == [newest[0]["id"][:8]]
