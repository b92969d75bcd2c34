"""A rank that holds the GIL in native code: its line is named by every command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from otel_torchdist.telemetry import semconv
from tests.cli.gloo_jobs import WORKER, GlooJobs
from tests.support.commands.asking import ask
from tests.support.commands.running import Running, processes_of
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver, ReceivedSpan
from tests.support.waiting import until

pytestmark = pytest.mark.thorough
THRESHOLD_S = 2.5
"""The GIL must have been held for three seconds when the rank is queried, a second after the threshold."""
LINE = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "PyDLL(None).read" in line)
VERDICT = (
    r"rank 1 has not entered all_reduce \(sequence 6, default_pg\) for [\d.]+ s(; i|\. I)t "
    rf"is in decode_batch at training\.py:{LINE} \(stack taken by a signal while the GIL was held\), "
    r"and its Python threads have not run for [\d.]+ s"
)
DEADLINE = r".*; gloo raises an error in rank 0 in 29 min \d+ s \(timeout 30 min\)(\. next: |\n  next   ).*"
STACK = rf"  stack  in decode_batch at training\.py:{LINE}, written .*, by a signal while the GIL was held"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Receives the spans."""
    with OtlpReceiver(GRPC) as receiver:
        yield receiver


@pytest.fixture
def job(gloo_by_kernel: Callable[..., GlooJobs], receiver: OtlpReceiver) -> GlooJobs:
    """A job of two ranks, the second of which holds its GIL, with the agent that its ranks start."""
    environ = {
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(THRESHOLD_S * 1000)),
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
    }
    return gloo_by_kernel("holds the GIL", ranks=2, reader="agent", environ=environ)


def named(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """Spans of an incident for rank 1, with a stack that was taken by a signal."""
    bars = [span for span in spans if span.name.startswith("rank 1: absent")]
    return [bar for bar in bars if bar.attributes.get(semconv.STACK_SOURCE) == "signal"]


def test_rank_that_holds_the_gil(job: GlooJobs, start_beside: Callable[..., Running], receiver: OtlpReceiver) -> None:
    """The incident names the rank with its stack; `watch` and `diagnose` show the same, also after all were killed."""
    watch = start_beside(job, "watch", "--plain", "--threshold", str(THRESHOLD_S), "--keep", "0")
    bar = named(receiver.wait_for(lambda spans: bool(named(spans)), 120.0))[0]
    assert (bar.attributes[semconv.CODE_FUNCTION], bar.attributes[semconv.CODE_LINE]) == ("decode_batch", LINE)
    assert bar.attributes[semconv.CODE_FILE] == str(WORKER)
    assert f'training.py", line {LINE}, in decode_batch' in bar.attributes[semconv.CODE_STACKTRACE]
    [root] = [span for span in receiver.spans() if span.span_id == bar.parent_id]
    assert root.name == "stall: all_reduce (absent)"
    assert root.error is not None
    assert re.search(VERDICT, root.error)
    watch.wait_for(rf"(STALL|still): {VERDICT}{DEADLINE}$")
    living = ask(job.base, threshold_s=THRESHOLD_S)
    assert living.has(f"verdict  {VERDICT}{DEADLINE}")
    assert living.has(STACK)
    [stack] = [one["stack"] for one in ask(job.base, "--json").document["ranks"] if one["rank"] == 1]
    assert stack["source"] == "signal"
    assert (stack["call_site"]["function"], stack["call_site"]["line"]) == ("decode_batch", LINE)

    job.kill()
    assert watch.end() == 0, watch.story()
    dead = ask(job.base, threshold_s=THRESHOLD_S)
    assert dead.has(f"verdict  {VERDICT}.*")
    assert dead.has(STACK)
    until(lambda: not processes_of(job.base))
