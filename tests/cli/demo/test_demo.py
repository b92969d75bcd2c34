"""`otel-torchdist demo` from beginning to end, without a terminal: its output and its leftovers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import running_browser
from tests.support.commands.running import Running, processes_of
from tests.support.launch.forked_ranks import with_forked_ranks
from tests.support.receivers.otlp_receiver import HTTP, OtlpReceiver, ReceivedSpan

THRESHOLD_S = 2.0
BLOCK_S = 8.0  # the time after the verdict is longer than the five seconds between two lines of progress
STEPS = 150
TRAIN = Path(str(files("otel_torchdist.cli.demo").joinpath("train.py")))
BLOCKING_LINE = next(n for n, line in enumerate(TRAIN.read_text().splitlines(), 1) if "time.sleep" in line)


@dataclass(frozen=True)
class Seen:
    """A finished demo.

    Attributes:
        code: Its exit code.
        out: Its standard output.
        err: Its standard error.
        requests: The lines of its file, decoded.
        received: Spans that the OTLP endpoint received.
        base: Its base directory for tapes.
        report: Its report.
    """

    code: int
    out: str
    err: str
    requests: list[Any]
    received: list[ReceivedSpan]
    base: Path
    report: Path

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The spans in the file."""
        return [
            span
            for request in self.requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture(scope="module")
def seen(module_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """One demo with four ranks, shortened."""
    output = tmp_path_factory.mktemp("demo") / "spans.jsonl"
    output.write_text("what a run before has left\n")
    report = output.with_name("report.html")
    with OtlpReceiver(HTTP) as receiver:
        running = Running(
            module_base, "demo", "--output", output, "--otlp-endpoint", receiver.endpoint, "--protocol", HTTP,
            "--steps", str(STEPS), "--seed", "1", "--threshold", str(THRESHOLD_S), "--block-seconds", str(BLOCK_S),
            "--report", report,
            environ=with_forked_ranks({}, "sklearn.datasets"),
        )  # fmt: skip
        try:
            code = running.end(300)
        finally:
            running.close()
        received = receiver.spans()
    requests = [json.loads(line) for line in output.read_text().splitlines()]
    yield Seen(code, running.out, running.err, requests, received, module_base, report)


def test_ends_well(seen: Seen) -> None:
    """The demo ends with 0, has nothing to complain about, and no line of it is wrapped or colored."""
    assert seen.code == 0, f"{seen.out}\n{seen.err}"
    assert seen.err == ""
    assert "\x1b" not in seen.out


def test_names_rank_operation_and_line(seen: Seen) -> None:
    """In time the demo names the rank that is held up, the collective, for how long, and the line that blocks."""
    [first, *later] = re.findall(r"(?:STALL|still): (rank 2 .*)", seen.out)
    pattern = (
        r"rank 2 has not entered all_reduce \(DDP bucket 0, sequence \d+, default_pg\) for ([\d.]+) s; "
        rf"it is in (?:Digits\.)?__getitem__ at train\.py:{BLOCKING_LINE}; "
        r"3 of 4 ranks wait in \S+ at \S+:\d+(?:, in \S+ \S+)?\. "
        r"Gloo raises an error in rank [013] in 29 min \d+ s \(timeout 30 min\)\. "
        r"next: find out why rank 2 did not go on from .*"
    )
    # On a loaded machine the rank may write its stack after the first sentence.
    sentence = next(filter(None, (re.fullmatch(pattern, one) for one in (first, *later))), None)
    assert sentence is not None, seen.out
    assert float(sentence[1]) >= THRESHOLD_S
    place = re.search(r"STALL: rank 2 .*\n[\d:]{8} +(.*)", seen.out)
    assert place is not None
    if sentence[0] == first:
        file, code = place[1].split(f":{BLOCKING_LINE}: ")
        assert (Path(file).resolve(), code) == (TRAIN, "time.sleep(self._block_s)")
    named = re.search(r"^Expected: absent, rank 2\.\nReported: the same, ([\d.]+) s after the first", seen.out, re.M)
    assert named is not None and float(named[1]) <= THRESHOLD_S + 2


def test_training_goes_on_and_learns(seen: Seen) -> None:
    """The stall lasts as long as the storage blocked, and the trained network then recognizes unseen digits."""
    over = re.search(r"stall over: all_reduce \(.*\) completed after ([\d.]+) s", seen.out)
    assert over is not None and BLOCK_S - 1 < float(over[1]) < BLOCK_S + 2
    accuracy = re.search(r"^Training has finished: accuracy on 360 held-out images: ([\d.]+)%$", seen.out, re.M)
    assert accuracy is not None and float(accuracy[1]) > 95


def test_file_has_every_span_once(seen: Seen) -> None:
    """The file is OTLP JSON of this run only: each span id once, markers, incident, and every rank's steps."""
    ids = Counter(span["spanId"] for span in seen.spans)
    assert ids.most_common(1)[0][1] == 1
    names = Counter(span["name"] for span in seen.spans)
    assert names["stall: all_reduce (absent)"] >= 2  # during the stall, and at its end
    assert names["rank 2: absent"] >= 1
    assert names["all_reduce (in progress)"] >= 3
    assert all(names[f"step (rank {rank})"] >= STEPS for rank in range(4))
    parents = {span["parentSpanId"] for span in seen.spans if "parentSpanId" in span}
    assert parents <= ids.keys()


def test_endpoint_gets_the_same(seen: Seen) -> None:
    """The OTLP endpoint has received exactly the spans in the file, and the final report points there."""
    assert {f"{span.span_id:016x}" for span in seen.received} == {span["spanId"] for span in seen.spans}
    assert len(seen.received) == len(seen.spans)
    incident = next(span for span in seen.received if span.name.startswith("stall: "))
    assert f":16686/trace/{incident.trace_id:032x}" in seen.out
    assert incident.attributes["torchdist.ranks"] == "2"


def test_shows_metrics_of_the_stall(seen: Seen) -> None:
    """The metrics scraped during the stall show it."""
    sample = seen.out.partition("/metrics, as scraped during the stall:")[2]
    assert re.search(r"^  torchdist_stalled\{.*\} 1\.0$", sample, re.M)
    assert re.search(r'^  torchdist_stall_info\{.*ranks="2".*verdict="absent".*\} 1\.0$', sample, re.M)
    ages = re.findall(r'torchdist_operation_oldest_age_seconds\{.*operation="all_reduce".*\} ([\d.]+)', sample)
    assert sorted(float(age) > THRESHOLD_S for age in ages) == [False, True, True, True]


def test_plain_progress(seen: Seen) -> None:
    """Without a terminal, the state is printed as a line from time to time."""
    assert re.search(r"step \d+ of 150; .*rank 2 absent, not in all_reduce #\d+ \([^()]+\) for [\d.]+ s", seen.out)
    assert re.search(r"ranks 0-1,3 stalled, all_reduce #\d+ \([^()]+\) for [\d.]+ s", seen.out)


def test_leaves_nothing(seen: Seen) -> None:
    """Neither a process nor a tape is left."""
    assert processes_of(seen.base) == []
    assert list(seen.base.iterdir()) == []


def test_report_shows_the_late_rank(seen: Seen) -> None:
    """A browser shows the report on the run, which went on: who was late, for how long, and who waited meanwhile."""
    assert f"Report, for any browser: {seen.report}: run " in seen.out
    with running_browser() as browser, browser.page(seen.report) as (page, problems):
        page.locator("#main:not([aria-busy])").wait_for()
        assert page.locator(".rank-cell.named").get_attribute("data-rank") == "2"
        sentence = page.locator("#incidents .sentence").inner_text()
        found = re.match(
            r"Rank 2 kept 3 ranks waiting for ([\d.]+) s in all_reduce \(sequence \d+, default_pg\)", sentence
        )
        assert found is not None, sentence
        assert BLOCK_S - 1 <= float(found[1]) <= BLOCK_S + 1
        on_path = page.locator("#critical-path table").last.locator("tbody tr").all()
        assert [row.inner_text().split("\t")[0] for row in on_path] == ["0", "1", "2", "3"]
        page.locator("#incidents").get_by_role("button", name="Timeline").first.click()
        bars = page.evaluate("document.querySelector('#timeline .lanes canvas').drawn().bars")
        long = sum(bar["end"] is not None and bar["end"] - bar["begin"] > (BLOCK_S - 1) * 1e9 for bar in bars)
        assert long == 3 + 3 + 1, "three all_reduce, the backward passes around them, and the data wait of rank 2"
        assert (problems.errors, problems.requests) == ([], [])
