"""`export --otlp`: what it sends, what it reports, and how it ends if that fails."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.telemetry.export.outputs import Delivery
from tests.sources.flight.made_dumps import late_rank, write
from tests.support.commands.asking import Answer, ask
from tests.support.commands.running import Running
from tests.support.receivers.otlp_receiver import HTTP, OtlpReceiver
from tests.support.waiting import until

ABSENT = 2


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of dumps of four ranks."""
    return write(tmp_path_factory.mktemp("job") / "dumps", late_rank(4, ABSENT, steps=20))


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    """A receiver for all tests; each looks only at its own trace."""
    with OtlpReceiver() as running:
        yield running


def trace_ids(answer: Answer) -> list[int]:
    """The traces that the command has named, in order."""
    return [int(found, 16) for found in re.findall(r"^trace ([0-9a-f]{32})  ", answer.out, re.MULTILINE)]


def test_calls_and_verdict_are_sent(base: Path, dumps: Path, receiver: OtlpReceiver) -> None:
    """Both traces that it names arrive, complete; the verdict is on the screen too."""
    answer = ask(base, "--otlp", dumps, "--otlp-endpoint", receiver.endpoint, command="export")
    assert (answer.code, answer.err) == (0, "")
    stall, calls = trace_ids(answer)
    spans = {trace: [span for span in receiver.spans() if span.trace_id == trace] for trace in (stall, calls)}
    ids = {span.span_id for trace in spans.values() for span in trace}
    assert all(not span.parent_id or span.parent_id in ids for trace in spans.values() for span in trace)
    assert len(ids) == len(spans[stall]) + len(spans[calls])
    assert spans[stall][0].name == "stall: all_reduce (absent)"
    assert spans[calls][0].name == "imported flight recorder"
    assert answer.has(f"  rank {ABSENT} has not entered all_reduce .*")
    assert answer.has(rf"sent {len(ids)} spans \(--otlp-endpoint {receiver.endpoint}\)")


def test_a_second_import_has_the_same_ids(base: Path, dumps: Path, receiver: OtlpReceiver) -> None:
    """Whatever the order of the files: each span that comes again equals the one before."""
    answers: list[Answer] = []
    for paths in (sorted(dumps.iterdir()), sorted(dumps.iterdir(), reverse=True)):
        answers.append(
            ask(base, "--otlp", *paths, "--otlp-endpoint", receiver.endpoint, "--last", "7", command="export")
        )
    assert trace_ids(answers[0]) == trace_ids(answers[1])
    sent = [span for span in receiver.spans() if span.trace_id in trace_ids(answers[0])]
    half = len(sent) // 2
    assert half and sent[:half] == sent[half:]


def test_what_is_left_out_is_reported(base: Path, dumps: Path) -> None:
    """Older calls and other ranks, each with the option that includes them."""
    answer = ask(base, "--otlp", dumps, "--dry-run", "--last", "5", "--ranks", "0-1", command="export")
    assert answer.code == 0
    assert answer.has(r"left out: \d+ older calls; the newest 5 of each rank are shown, --last \d+ shows all.*")
    assert answer.has(r"left out: ranks 2-3; --ranks chooses them")
    assert answer.has(r"\d+ spans; nothing was sent")


def test_a_file(base: Path, dumps: Path, tmp_path: Path) -> None:
    """It has the spans that would be sent; a file that exists, perhaps a dump, is never overwritten."""
    path = tmp_path / "spans.jsonl"
    answer = ask(base, "--otlp", dumps, "--output", path, command="export")
    assert answer.code == 0
    [line] = path.read_text().splitlines()
    [scope] = json.loads(line)["resourceSpans"][0]["scopeSpans"]
    assert answer.has(rf"sent {len(scope['spans'])} spans \({path}\)")
    again = ask(base, "--otlp", dumps, "--output", path, command="export")
    assert (again.code, again.err) == (74, f"otel-torchdist: {path}: exists already; nothing was written\n")
    assert path.read_text().splitlines() == [line]


def test_a_file_that_is_interrupted(base: Path, dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while spans are written leaves no half file."""
    path = tmp_path / "spans.jsonl"

    def send(*_: object) -> None:
        path.write_text("half a li")
        raise KeyboardInterrupt

    monkeypatch.setattr(Delivery, "send", send)
    answer = ask(base, "--otlp", dumps, "--output", path, command="export")
    assert (answer.code, path.exists()) == (130, False)


def test_a_file_that_cannot_be_written(base: Path, dumps: Path) -> None:
    """One line with the reason."""
    answer = ask(base, "--otlp", dumps, "--output", "/proc/none/spans.jsonl", command="export")
    assert answer.code == 74
    assert answer.err == "otel-torchdist: /proc/none/spans.jsonl: No such file or directory; nothing was written\n"


def test_nobody_listens(base: Path, dumps: Path) -> None:
    """One line with endpoint, setting and reason; nothing is retried for long."""
    endpoint = "http://127.0.0.1:9"
    answer = ask(base, "--otlp", dumps, "--otlp-endpoint", endpoint, command="export", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert answer.code == 75
    assert re.fullmatch(
        r"otel-torchdist: 0 of \d+ spans were sent \(--otlp-endpoint http://127.0.0.1:9\): .*"
        r"\(no process listens there.*\); the same command may be repeated: .*\n",
        answer.err,
    )


def test_rejected_spans(base: Path, dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a receiver discards is counted, with its reason, and is no success."""
    with OtlpReceiver(HTTP) as receiver:
        receiver.refused, receiver.message = 2, "quota"
        options = ("--otlp-endpoint", receiver.endpoint)
        answer = ask(base, "--otlp", dumps, *options, command="export", OTEL_EXPORTER_OTLP_PROTOCOL=HTTP)
    assert answer.code == 75
    assert re.fullmatch(r"otel-torchdist: 2 of \d+ spans were rejected \(--otlp-endpoint .*\)\n", answer.err)
    assert "quota" in caplog.text


def test_ranks_without_a_file(base: Path, dumps: Path) -> None:
    """The ranks that have files are named."""
    answer = ask(base, "--otlp", dumps, "--ranks", "9", command="export")
    assert answer.code == 2
    assert answer.err == "otel-torchdist: --ranks 9: no file of these; there are files of ranks 0-3\n"


def test_interrupted(start: Callable[..., Running], dumps: Path) -> None:
    """Ctrl-C ends it while a receiver is slow, with one line on what has arrived."""
    with OtlpReceiver(delay_s=2.0) as receiver:
        running = start("export", "--otlp", dumps, "--otlp-endpoint", receiver.endpoint)
        until(lambda: receiver.requests)
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 130
    assert re.fullmatch(r"otel-torchdist: interrupted: 0 of \d+ spans were sent; .*\n", running.err)


@pytest.mark.parametrize("content", [None, b"", b"\x80\x02cos\nsystem\n."], ids=["nothing", "empty", "hostile"])
def test_no_dump(base: Path, tmp_path: Path, content: bytes | None) -> None:
    """Where there is no dump, nothing is sent, and the last line says so."""
    if content is not None:
        (tmp_path / "nccl_trace_rank_0").write_bytes(content)
    answer = ask(base, "--otlp", tmp_path, "--dry-run", command="export")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.endswith(f"otel-torchdist: {tmp_path}: no dump of a flight recorder with a call in it\n")
    assert ("nccl_trace_rank_0" in answer.err) == (content is not None)


def test_ranks_without_a_dump_come_first(base: Path, dumps: Path) -> None:
    """A rank that has left nothing is the first suspect; the others are imported."""
    paths = [path for path in sorted(dumps.iterdir()) if not path.name.endswith("_1")]
    answer = ask(base, "--otlp", *paths, "--dry-run", command="export")
    assert answer.code == 0
    assert answer.out.splitlines()[0] == "no file of rank 1"
    more = ask(base, "--otlp", *paths, "--dry-run", "--world-size", "6", command="export")
    assert more.out.splitlines()[0] == "no file of ranks 1,4-5"
