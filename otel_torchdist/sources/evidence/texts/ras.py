"""Reports of NCCL's RAS (`ncclras`, or the socket on port 28028): text since NCCL 2.24, JSON since 2.28.7.

Ranks are ranks within a communicator. They are global ranks only if the communicator contains every GPU of the job,
because torch numbers the members of a group in ascending order. Counts are launched operations: in a job that makes
progress, the counts of ranks may briefly differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.sources.evidence.facts import GroupMark, LaunchCount
from otel_torchdist.sources.evidence.statements import MAX_TEXT, Statement, StatementKind, TextSource
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

MAX_RANKS: Final = 65_536
_HEAD: Final = re.compile(r"^(?:Job summary|Communicators\.\.\.)", re.MULTILINE)
_TOTALS: Final = re.compile(r"\s*\d+\s+[\d-]+\s+[\d-]+\s+\d+\s+(?P<gpus>\d+)\s*$")
_GROUP: Final = re.compile(r"\s*(?P<group>\d+)\s+\d+\s+\d+\s+[\d-]+\s+(?P<size>\d+)\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*$")
_SECTION: Final = re.compile(r"\s*#(?P<group>\d+)-\d+ \((?P<hash>[0-9a-f]+)\) (?P<section>INCOMPLETE|ERROR|MISMATCH)")
_PLAIN_SECTION: Final = re.compile(r"\s*(?P<section>INCOMPLETE|DEAD|TIMEOUT)\s*$")
_PROCESS: Final = re.compile(r"\s*Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<gpus>\S+)")
_MISSING: Final = re.compile(r"\s*The (?:missing|unknown) ranks?: (?P<ranks>[\d,]+)")
_COUNTS: Final = re.compile(r"\s*Communicator ranks have different (?:(?P<operation>\w+) operation counts|status)")
_COLLECTIVE: Final = "collective"
_RANKS_WITH_COUNT: Final = re.compile(
    r"\s*(?P<ranks>\d+) ranks (?:have launched up to operation (?P<count>\d+)|reported (?P<error>.+))"
)
_STATUS: Final = re.compile(r"\s*\d+ ranks have status|\s*Rank \d+ has status")
_MEMBER: Final = re.compile(
    r"\s*Rank (?P<rank>\d+)(?: has launched up to operation (?P<count>\d+)| reported (?P<error>.+?))? -- "
    r"(?:GPU \S+ managed by process (?P<pid>\d+) on node (?P<host>\S+)|\[)"
)


def is_text(head: str) -> bool:
    """Return whether a file that begins with `head` contains a RAS report as text."""
    return _HEAD.search(head) is not None and "in group  per comm" in head


@dataclass
class _State:
    """The state of the parser.

    Attributes:
        gpus: GPUs of the job; 0 if unknown.
        sizes: Ranks of each communicator of a group, by group number.
        group: Number of the group in this section.
        section: `INCOMPLETE`, `MISMATCH`, …
        operation: Operation whose counts are listed; '' if all kinds are counted together, None outside of counts.
        count: Count of the ranks that are listed next; None if each states its own.
        error: Error of the ranks that are listed next, or ''.
        counts: Pairs of a number of ranks and their count.
        undecided: Statements of ranks with their count, until the most frequent count is known.
    """

    gpus: int = 0
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    group: str = ""
    communicator: str = ""
    section: str = ""
    operation: str | None = None
    count: int | None = None
    error: str = ""
    counts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    undecided: list[tuple[Statement, int]] = field(default_factory=list[tuple[Statement, int]])


def statements_of_text(text: str, path: str) -> list[Statement]:
    """Return statements on the missing ranks, dead processes, errors and deviating counts of a report."""
    state, statements = _State(), list[Statement]()
    for number, line in enumerate(text.splitlines(), 1):
        statements += _read(state, line, TextSource(path, number))
    return [*statements, *_decide(state)]


def _read(state: _State, line: str, source: TextSource) -> Iterator[Statement]:
    if (match := _SECTION.match(line)) is not None:
        yield from _decide(state)
        state.group, state.communicator, state.section = match["group"], match["hash"], match["section"]
        state.operation, state.error = None, ""
    elif (match := _PLAIN_SECTION.match(line)) is not None:
        yield from _decide(state)
        state.communicator, state.section = "", match["section"]
    elif (match := _GROUP.match(line)) is not None:
        state.sizes[match["group"]] = int(match["size"])
    elif (match := _TOTALS.match(line)) is not None:
        state.gpus = int(match["gpus"])
    elif (match := _COUNTS.match(line)) is not None:
        yield from _decide(state)
        operation = match["operation"]
        state.operation = (
            None if operation is None else "" if operation == _COLLECTIVE else readable(operation, MAX_TEXT)
        )
    elif (match := _MISSING.match(line)) is not None and state.communicator:
        for rank in match["ranks"].split(",")[:MAX_RANKS]:
            yield _statement(state, StatementKind.MISSING, source, line, int(rank or 0))
    elif (match := _PROCESS.match(line)) is not None and state.section in ("INCOMPLETE", "DEAD"):
        how = "considered dead by NCCL's RAS" if state.section == "DEAD" else "does not answer NCCL's RAS"
        where = f"process {match['pid']} on {match['host']} with GPU {match['gpus']}"
        yield Statement(StatementKind.MISSING, source, readable(f"{where}: {how}", MAX_TEXT), pid=int(match["pid"]))
    elif (match := _RANKS_WITH_COUNT.match(line)) is not None:
        state.count = int(match["count"]) if match["count"] else None
        state.error = match["error"] or ""
        if state.count is not None:
            state.counts.append((int(match["ranks"]), state.count))
    elif (match := _STATUS.match(line)) is not None:
        state.count, state.error = None, ""
    elif (match := _MEMBER.match(line)) is not None:
        yield from _member(state, match, source, line)


def _member(state: _State, match: re.Match[str], source: TextSource, line: str) -> Iterator[Statement]:
    rank, pid = int(match["rank"]), int(match["pid"]) if match["pid"] else None
    error = match["error"] or state.error
    if error and state.section == "ERROR":
        yield _statement(state, StatementKind.ERROR, source, f"reported {error}", rank, pid)
        return
    count = int(match["count"]) if match["count"] else state.count
    if state.operation is None or count is None:
        return
    if match["count"]:
        state.counts.append((1, count))
    if len(state.undecided) < MAX_RANKS:
        state.undecided.append((_statement(state, StatementKind.BEHIND, source, line, rank, pid), count))


def _decide(state: _State) -> Iterator[Statement]:
    """Yield the ranks whose count differs from the most frequent count, once all counts of an operation are known."""
    undecided, state.undecided = state.undecided, []
    counts, state.counts = state.counts, []
    usual_count = max(counts, default=(0, 0))[1]
    for statement, count in undecided:
        if count != usual_count:
            yield _counted(statement, state.communicator, state.operation or "", count, usual_count)
    state.count = None


def _counted(statement: Statement, communicator: str, operation: str, count: int, usual_count: int) -> Statement:
    named = f"{operation} operations" if operation else "collectives"
    return Statement(
        kind=StatementKind.BEHIND,
        source=statement.source,
        text=f"has launched {count} {named}, most others {usual_count}",
        rank=statement.rank,
        pid=statement.pid,
        group=statement.group,
        fact=LaunchCount(communicator, operation, count, usual_count),
    )


def _statement(
    state: _State, kind: StatementKind, source: TextSource, text: str, rank: int, pid: int | None = None
) -> Statement:
    size = state.sizes.get(state.group, 0)
    is_whole = bool(size) and size == state.gpus
    group = GroupMark(state.communicator, _described(size), rank)
    sanitized = readable(text.strip(), MAX_TEXT)
    return Statement(kind, source, sanitized, rank=rank if is_whole else None, pid=pid, group=group)


def _described(size: int) -> str:
    return f"a communicator of {size}" if size else ""


@dataclass(frozen=True, slots=True)
class _Status:
    async_error: int = 0
    unresponsive: bool = False
    considered_dead: bool = False


@dataclass(frozen=True, slots=True)
class _Rank:
    rank: int
    host: str = ""
    pid: int | None = None
    status: _Status = _Status()
    collective_counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Communicator:
    hash: str
    size: int
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Rank, ...] = ()


@dataclass(frozen=True, slots=True)
class _Report:
    nccl_version: str
    communicators: tuple[_Communicator, ...]


_IN_PROGRESS: Final = 7


def statements_of_json(content: bytes, path: str) -> list[Statement]:
    """Return the statements of a report in JSON; none for other content."""
    try:
        report = decode_json(content, _Report)
    except DecodingError:
        return []
    gpus = len({(rank.host, rank.pid) for communicator in report.communicators for rank in _all_ranks(communicator)})
    source = TextSource(path, 0)
    return [
        statement for communicator in report.communicators for statement in _statements_of(communicator, gpus, source)
    ]


def _all_ranks(communicator: _Communicator) -> Iterable[_Rank]:
    return (*communicator.ranks, *communicator.missing_ranks)


def _statements_of(communicator: _Communicator, gpus: int, source: TextSource) -> Iterator[Statement]:
    name = readable(communicator.hash.removeprefix("0x"), MAX_TEXT)
    state = _State(gpus=gpus, sizes={"": communicator.size}, communicator=name)
    for rank in communicator.missing_ranks:
        how = "considered dead" if rank.status.considered_dead else "does not answer NCCL's RAS"
        yield _statement(
            state, StatementKind.MISSING, source, f"process {rank.pid} on {rank.host}: {how}", rank.rank, rank.pid
        )
    for rank in communicator.ranks:
        if rank.status.async_error not in (0, _IN_PROGRESS):
            yield _statement(
                state, StatementKind.ERROR, source, f"reported error {rank.status.async_error}", rank.rank, rank.pid
            )
    for operation in sorted({name for rank in communicator.ranks for name in rank.collective_counts}):
        counted = [(rank, rank.collective_counts.get(operation, 0)) for rank in communicator.ranks]
        usual_count = Counter(count for _, count in counted).most_common(1)[0][0]
        for rank, count in counted:
            if count != usual_count:
                statement = _statement(state, StatementKind.BEHIND, source, "", rank.rank, rank.pid)
                yield _counted(statement, name, readable(operation, MAX_TEXT), count, usual_count)
