"""Numbers and lists on the pages that the code also knows are those of the code."""

from __future__ import annotations

import re
from typing import Final

import pytest

from otel_torchdist.agent import limits, node
from otel_torchdist.agent.exchange import client, peers
from otel_torchdist.agent.launch import keeper
from otel_torchdist.agent.path_watch import child, findings
from otel_torchdist.analysis.critical_path import analysis
from otel_torchdist.analysis.parallelism import imbalance
from otel_torchdist.analysis.timeline import flows
from otel_torchdist.capture.core import call_paths, call_sites, message_counters
from otel_torchdist.capture.core.calls import channels as group_names
from otel_torchdist.capture.core.calls import plans, signatures
from otel_torchdist.capture.core.cuda import driver, readings
from otel_torchdist.capture.parts import optimizer_steps, steps
from otel_torchdist.capture.parts.checkpoints import open_activities
from otel_torchdist.capture.tensors import replica_sets
from otel_torchdist.cli.export import perfetto
from otel_torchdist.cli.export.recording_spans import recording
from otel_torchdist.config import Config
from otel_torchdist.judge.stall.findings import non_finite, silent_mismatch, stragglers
from otel_torchdist.judge.verdict import circumstances, compiling
from otel_torchdist.judge.world.following import baselines, channels, starting_ranks, values
from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.node.job import directory, room
from otel_torchdist.node.job import peers as node_peers
from otel_torchdist.package import OLDEST_TORCH
from otel_torchdist.show.live import blame, feed
from otel_torchdist.show.report import windows
from otel_torchdist.show.serving import clients, metrics_page
from otel_torchdist.sources.archive import tapes, writer
from otel_torchdist.sources.flight.reading.limits import DEFAULT_LIMITS
from otel_torchdist.system.files.unpacking import MAX_RATIO
from otel_torchdist.tape import layout
from otel_torchdist.tape.reading import reader
from otel_torchdist.telemetry.export import otlp, queued_sink
from otel_torchdist.telemetry.metrics import labels
from otel_torchdist.telemetry.spans import segments
from tests.support.documented import page
from tests.support.repository import REPOSITORY
from wheels.torches import VERSIONS

OLDEST: Final = ".".join(map(str, OLDEST_TORCH))
NEWEST: Final = VERSIONS[-1].rpartition(".")[0]
MIB: Final = 1 << 20
SECOND_NS: Final = 1_000_000_000
WORDS: Final = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
]
"""Numbers as pages write them in sentences."""

PHRASES: Final = {
    "architecture/tape.md": [
        f"One file of {(layout.RING_OFFSET + Config().tape_records * layout.RECORD_SIZE) // MIB} MiB",
        f"of {layout.REFUGE_SLOTS} records, and a ring of {Config().tape_records:,} records",
        f"records of {layout.RECORD_SIZE} bytes",
        f"up to {reader.COPIED_AT_ONCE} records at a time",
    ],
    "architecture/capture.md": [
        f"on the first {plans.REDUCE_OP_FIRST} calls of a plan",
        f"a multiple of {plans.REDUCE_OP_EVERY} ",
        f"After {signatures.RAGGED_AFTER} shapes at one line",
        f"{WORDS[signatures.MAX_DESCRIBED]} for {signatures.MAX_SUMMED} members",
        f"frames ({call_sites.CALLERS} in Python)",
        f"with more than {call_paths.MAX_PATHS} paths",
        f"at most {message_counters.MAX_COUNTERS:,} counters",
        f"at most {driver.MAX_EVENTS:,} per device",
        f"At most {group_names.MAX_TIMEOUTS - 1} changes of a group",
        f"has stepped {steps.REPLACES_CHOSEN_AFTER} times without",
        f"at most {optimizer_steps.MAX_IN_STEP} in a training step",
        f"At most {open_activities.MAX_IN_STEP} checkpoints of a kind",
        f"with {open_activities.MAX_STAGES} stages each",
    ],
    "architecture/telemetry.md": [
        f"after {segments.SEGMENT_NS // SECOND_NS} s, after {segments.MAX_OPERATIONS:,} operations",
        f"up to {queued_sink.MAX_QUEUED_SPANS:,} spans",
        f"the bytes of up to {otlp.MAX_CACHED:,} attributes",
        f"{labels.MAX_GROUPS} groups, {labels.MAX_OPERATIONS} operations",
        f"{labels.MAX_PAIRS} pairs, {labels.MAX_SIZED} ",
    ],
    "architecture/judge.md": [
        f"operations above {baselines.LONG_NS // 1_000_000} ms",
        f"up to {WORDS[circumstances.PATIENCE]} times the usual",
        f"at most {WORDS[circumstances.MAX_ADDED_NS // SECOND_NS // 60]} minutes more",
        f"not a stall for {WORDS[compiling.COMPILE_NS // SECOND_NS // 60]} minutes",
        f"windows of {channels.LENGTH} calls, each with one digest, and the last {WORDS[channels.MAX_WINDOWS]}",
        f"reported after {silent_mismatch.REPORTED_AFTER_NS // SECOND_NS} s",
        f"causes {stragglers.MIN_BLAME * 100:g} % of",
        f"{WORDS[stragglers.CONFIRMATIONS]} consecutive periods of at least {stragglers.MIN_SPAN_NS // SECOND_NS} s",
        f"than the threshold ({Config().stall_timeout:g} s)",
    ],
    "architecture/node.md": [
        f"fewer than {room.MIN_RECORDS} records",
    ],
    "architecture/agent.md": [
        f"nice {limits.NICE}",
        f"until {limits.CALM_S:g} s after the wait",
        f"{WORDS[keeper.MAX_STARTS]} times within {WORDS[int(keeper.STARTS_WITHIN_S // 60)]} minutes",
        f"the first {node_peers.MAX_PEERS} nodes",
        f"Questions are at most {peers.MAX_QUESTION // MIB} MiB, answers {client.MAX_ANSWER // MIB} MiB",
        f"about {limits.MAX_BYTES_OF_USER // MIB} MiB of the service",
        f"at most {directory.MAX_ENTRIES:,} entries",
        f"of all, and {limits.MAX_TAPES_OF_USER:,} tapes",
        f"{WORDS[node.SLOW_SCANS]} times in a row",
    ],
    "architecture/show.md": [
        f"a visitor in the last {feed.WATCHED_S:g} s",
        f"one of the {clients.MAX_CLIENTS} client slots",
        f"the first free one of {metrics_page.PORTS_TRIED} ports",
    ],
    "archive.md": [
        f"up to {tapes.MAX_SEGMENT_OPERATIONS:,} operations",
        f"of {tapes.MAX_INTERVAL_NS // SECOND_NS} seconds",
        f"up to {writer.MAX_WAITING_BYTES // MIB} MiB",
        f"every {writer.FIRST_PAUSE_S:g} to {writer.LONGEST_PAUSE_S:g} seconds",
    ],
    "critical-path.md": [
        f"{WORDS[findings.MIN_PATHS]} consecutive analyses ({findings.PERSISTENCE_S:g} s or more)",
        f"costs at least {findings.MIN_SHARE * 100:g} % of a step",
        f"at most {child.MAX_CALLS:,} calls",
        f"{analysis.MAX_CALLS:,} by default",
    ],
    "flight-recorder.md": [f"{Config().tape_records:,} calls instead of 2,000"],
    "graph.md": [f"at most the newest {imbalance.MAX_COMPARED:,}"],
    "leftovers.md": [
        f"{DEFAULT_LIMITS.total_bytes >> 30} GiB unpacked, {DEFAULT_LIMITS.members:,} members",
        f"files of {DEFAULT_LIMITS.file_bytes // MIB} MiB",
        f"at most {MAX_RATIO} bytes of output",
        f"The newest {recording.DEFAULT_CALLS} calls of each rank",
        f"if that makes more than {recording.MAX_CALLS:,}",
        f"more than {recording.MAX_RANKS} ranks",
    ],
    "launchers.md": [f"waits {starting_ranks.PATIENCE_NS // 10**9} s instead of the usual threshold"],
    "live-page.md": [
        f"at most {WORDS[blame.MAX_STACKS]}",
        f"({feed.MAX_BARS_PER_RANK} each;",
        f"At most {clients.MAX_CLIENTS} clients",
    ],
    "numerics.md": [
        f"one of {readings.SLOTS} slots",
        f"After {values.CALM_STEPS} steps without",
        f"skipped {WORDS[non_finite.SKIPS_IN_A_ROW]} in a row",
        f"beyond {replica_sets.MAX_MODELS:,} and {replica_sets.MAX_OPTIMIZERS:,}",
        f"one operation in {Config().numerics_every}",
    ],
    "report.md": [
        f"at most {WORDS[windows.DEFAULT_STEPS]} and {windows.MAX_BARS:,} calls",
        f"more than {windows.DEFAULT_RANKS} ranks it shows {windows.DEFAULT_RANKS}",
        f"at most {windows.MAX_RANKS},",
    ],
    "rescue.md": [
        f"(`OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE`, {Config().on_stall_grace:g} s)",
        f"`OTEL_PYTHON_TORCHDIST_RESCUE_TIMEOUT` ({Config().rescue_timeout:g} s)",
    ],
    "running.md": [
        f"the next free port of {metrics_page.PORTS_TRIED}",
        f"torch from {OLDEST} to {NEWEST}",
    ],
    "terminal.md": [f"at most {layout.MAX_PROFILE_RATE}, for up to a minute"],
    "timeline.md": [f"More than {perfetto.MAX_SLICES:,} slices", f"in groups of more than {flows.MAX_FLOWS}"],
    "../SUPPORT.md": [
        f"| torch | {OLDEST} to {NEWEST}, releases | the newest {WORDS[len(VERSIONS)]} minor versions",
        f"tape format {layout.VERSION} ",
    ],
    "../CHANGELOG.md": [f"after {signatures.RAGGED_AFTER} shapes"],
}
"""Phrases with numbers, by page."""


@pytest.mark.parametrize("name", PHRASES)
def test_numbers_are_those_of_the_code(name: str) -> None:
    """Each phrase stands on its page with the number that the code has."""
    text = " ".join(page(name).split())
    assert [phrase for phrase in PHRASES[name] if phrase not in text] == []


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"torch ([\d.]+) to [\d.]+", OLDEST),
        (r"torch [\d.]+ to ([\d.]+\d)", NEWEST),
        (r"free port of (\d+)", str(metrics_page.PORTS_TRIED)),
        (r"threshold \((\d+) s\)", f"{Config().stall_timeout:g}"),
        (r"3\.10 with `TORCH=([\d.]+)`", VERSIONS[-2]),  # the newest torch with wheels for Python 3.10
    ],
)
def test_numbers_of_the_readme(pattern: str, value: str) -> None:
    """Wherever README has one of these numbers, it is the code's."""
    assert set(re.findall(pattern, " ".join(page("../README.md").split()))) <= {value}


def test_glossary_lists_no_wrong_findings() -> None:
    """What the glossary calls findings are findings."""
    [row] = [line for line in page("glossary.md").splitlines() if line.startswith("| finding |")]
    assert set(re.findall(r"`(\w+)`", row)) <= {kind.value for kind in FindingKind}


def test_makefile_names_the_newest_torch_for_an_old_python() -> None:
    """The Makefile's example for Python 3.10 has the version that README has."""
    assert f"PYTHON=python3.10 VENV=.venv-3.10 TORCH={VERSIONS[-2]}" in (REPOSITORY / "Makefile").read_text()
