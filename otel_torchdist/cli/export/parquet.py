"""`export --parquet`: the operations of a run as tables, written by DuckDB.

Rows go through a file of numbers, and what operations from one call site have in common through a table of its own:
passing values to DuckDB one by one takes a microsecond for each.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.archive.reading import fresh_rows
from otel_torchdist.archive.segments import Columns
from otel_torchdist.cli.export.tables import OPERATIONS, PLAN, ROW, STORED, TABLES, Column
from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.ends import COARSE, EXACT
from otel_torchdist.model.kinds import How, Phase, RecordKind, TapeState
from otel_torchdist.model.names import GroupName, unpack_label
from otel_torchdist.tape.names.reader import Names

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_AT_ONCE: Final = 1_000_000
_UNFINISHED: Final = ".otel-torchdist-"
_LINE: Final = ",".join(["%d"] * len(ROW)) + "\n"
_FORMAT: Final = "FORMAT parquet, COMPRESSION zstd"
_NEWER: Final = f"{_FORMAT}, PARQUET_VERSION v2"
"""Numbers take a fifth less with its encodings; versions before 1.3 cannot write it."""


class ParquetError(TorchDistError):
    """Files of Parquet cannot be written; the message names them and says why."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        rows: How many rows each table has.
        bytes: How many bytes the files have.
    """

    rows: dict[str, int]
    bytes: int


def check_place(folder: Path, force: bool) -> None:
    """Check that files may be written into a folder: it is missing, empty, or holds an earlier export.

    Raises:
        ParquetError: They may not.
    """
    try:
        held = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise ParquetError(f"{folder}: {error.strerror}") from error
    foreign = [name for name in held if name not in _FILES and not name.startswith(_UNFINISHED)]
    if foreign and not force:
        raise ParquetError(
            f"{folder}: it holds files that no export has written ({foreign[0]}); name another folder, or use --force, "
            "which leaves other files alone"
        )


def write_parquet(folder: Path, ranks: Iterable[Iterable[Columns]]) -> Written:
    """Write the tables of a run into a folder; until all are written, nothing there is replaced.

    Args:
        folder: Created if it does not exist.
        ranks: The segments of each rank.

    Raises:
        ImportError: DuckDB is not installed.
        ParquetError: The files cannot be written.
    """
    import duckdb

    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    except OSError as error:
        raise ParquetError(f"{folder}: {error.strerror}") from error
    try:
        with (
            duckdb.connect(str(unfinished / "work.duckdb")) as database,
            contextlib.closing(_Tables(database, unfinished)) as tables,
        ):
            for segments in ranks:
                tables.add_rank(segments)
            rows = tables.finish()
        size = sum((unfinished / name).stat().st_size for name in _FILES)
        for name in _FILES:
            (unfinished / name).replace(folder / name)
        return Written(rows, size)
    except (OSError, duckdb.Error) as error:
        raise ParquetError(f"{folder}: {str(error).partition(chr(10))[0]}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


_FILES: Final = tuple(f"{name}.parquet" for name in TABLES)


class _Tables:
    """The tables while they are written; rows of operations are turned into files whenever there are many."""

    def __init__(self, database: DuckDBPyConnection, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._parts: list[Path] = []
        self._plans: dict[tuple[Any, ...], int] = {}
        self._new_plans: list[tuple[Any, ...]] = []
        self._groups: set[str] = set()
        self._rows = 0
        self._numbers = open(folder / "numbers.csv", "w")  # noqa: SIM115  # see `close`
        database.execute("SET memory_limit = '1GB'")
        database.execute("SET preserve_insertion_order = false")
        database.execute(f"CREATE TABLE plans ({_declared(PLAN)})")
        for name, stored in STORED.items():
            database.execute(f"CREATE TABLE {name} ({_declared(stored)})")

    def close(self) -> None:
        """Close the file of rows; idempotent."""
        self._numbers.close()

    def add_rank(self, segments: Iterable[Columns]) -> None:
        operations, names, last = 0, Names(), None
        for columns, is_fresh, is_last in fresh_rows(segments):
            names.update(columns.names)
            every = all(is_fresh)
            ended = columns.ended if every else [_chosen(column, is_fresh) for column in columns.ended]
            operations += self._add_operations(columns, ended, names)
            if is_last:  # earlier segments have what was open then
                operations += self._add_operations(columns, columns.open, names)
            self._add_steps(columns)
            last = columns
        if last is not None:
            self._add_groups(names)
            self._add_end(last, operations)

    def _add_operations(self, columns: Columns, table: Sequence[array[int]], names: Names) -> int:
        count = len(table[0])
        if not count:
            return 0
        origin = columns.origin
        ids = [self._plan(origin.nonce, plan, names) for plan in columns.plans]
        number, plans, *others = table
        offsets = [columns.moment.wall_offset_ns] * count
        rows = zip([origin.rank] * count, offsets, number, [ids[plan] for plan in plans], *others, strict=True)
        self._numbers.writelines(map(_LINE.__mod__, rows))
        self._rows += count
        if self._rows >= ROWS_AT_ONCE:
            self._write_part()
        return count

    def _plan(self, nonce: int, plan: tuple[Any, ...], names: Names) -> int:
        known = self._plans.get((nonce, plan))
        if known is None:
            known = self._plans[nonce, plan] = len(self._plans)
            self._new_plans.append((known, *_described(plan, names)))
        return known

    def _add_steps(self, columns: Columns) -> None:
        count = len(columns.steps[0])
        fixed = [[columns.origin.rank] * count, [columns.moment.wall_offset_ns] * count]
        self._insert("steps", list(zip(*fixed, *columns.steps, strict=True)))

    def _add_groups(self, names: Names) -> None:
        found = {name.key: name for name in map(names.group, names.group_ids()) if name is not None}
        new = [_group(key, name) for key, name in found.items() if key not in self._groups]
        self._groups |= found.keys()
        self._insert("groups", new)

    def _add_end(self, last: Columns, operations: int) -> None:
        origin, moment = last.origin, last.moment
        row = (
            origin.rank, f"{origin.run_id:032x}", origin.world_size, origin.host, f"{origin.boot_id:032x}",
            origin.begun_ns, moment.taken_ns, moment.wall_offset_ns, _state(moment.state), moment.failure or None,
            operations, moment.lost,
        )  # fmt: skip
        self._insert("ranks", [row])

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            values = ", ".join(f"unnest(${place})" for place in range(1, len(rows[0]) + 1))
            self._database.execute(
                f"INSERT INTO {table} SELECT {values}", [list(one) for one in zip(*rows, strict=True)]
            )

    def _write_part(self) -> None:
        """Turn the rows that have come together into a file."""
        self._insert("plans", self._new_plans)
        self._new_plans = []
        self._numbers.close()
        part = self._folder / f"part-{len(self._parts)}.parquet"
        columns = ", ".join(f"'{name}': 'BIGINT'" for name in ROW)
        numbers = (
            f"read_csv({_quoted(self._numbers.name)}, columns = {{{columns}}}, header = false, auto_detect = false)"
        )
        self._copy(f"{_selected(OPERATIONS)} FROM {numbers} JOIN plans USING (plan)", part)
        self._parts.append(part)
        self._numbers = open(self._numbers.name, "w")  # noqa: SIM115  # see `close`
        self._rows = 0

    def finish(self) -> dict[str, int]:
        """Write the files; returns how many rows each has."""
        if self._rows or not self._parts:
            self._write_part()
        self._numbers.close()
        parts = ", ".join(_quoted(str(part)) for part in self._parts)
        whole = f"SELECT * FROM read_parquet([{parts}])"
        self._copy(f"{whole} ORDER BY rank, number", self._folder / "operations.parquet")
        for name in STORED:
            first, second = TABLES[name][:2]
            order = f"{first.name}, {second.name}"
            self._copy(f"{_selected(TABLES[name])} FROM {name} ORDER BY {order}", self._folder / f"{name}.parquet")
        return {name: self._count(name) for name in TABLES}

    def _copy(self, query: str, path: Path) -> None:
        for options in (_NEWER, _FORMAT):
            try:
                self._database.execute(f"COPY ({query}) TO {_quoted(str(path))} ({options})")
            except Exception:
                if options is _FORMAT:
                    raise
            else:
                return

    def _count(self, name: str) -> int:
        path = _quoted(str(self._folder / f"{name}.parquet"))
        found = self._database.execute(f"SELECT count(*) FROM read_parquet({path})").fetchone()
        return int(found[0]) if found else 0


def _described(plan: tuple[Any, ...], names: Names) -> Iterator[Any]:
    """Yield the row of a plan, see `PLAN`, without its number."""
    kind, flags, group_id, signature_id, site_id, label, thread, failure, how, started_how, phase, *_ = plan
    group, signature, site = names.group(group_id), names.signature(signature_id), names.call_site(site_id)
    is_rendezvous = kind == RecordKind.RENDEZVOUS
    yield "rendezvous" if is_rendezvous else "operation"
    yield int(flags)
    yield signature.operation if signature else "new_group" if is_rendezvous else "operation"
    yield (signature.reduce_op or None) if signature else None
    yield ", ".join(signature.dtypes) if signature else None
    yield " ".join(str(list(shape)) for shape in signature.shapes) if signature else None
    yield signature.device if signature else None
    yield group.key if group else None
    yield site.function if site else None
    yield site.file if site else None
    yield site.line if site else None
    yield names.label(*unpack_label(label))
    yield int(thread)
    yield names.text(failure)
    yield None if how is None else How(how).name.lower()
    yield None if started_how is None else How(started_how).name.lower()
    yield None if phase == Phase.UNKNOWN else Phase(phase).name.lower()
    yield how in EXACT and started_how not in COARSE  # as `Operation.is_timed`


def _group(key: str, name: GroupName) -> tuple[Any, ...]:
    return key, name.name, name.description or None, name.backend, list(name.ranks), name.aligned


def _state(state: int) -> str:
    try:
        return TapeState(state).name.lower()
    except ValueError:
        return "unknown"


def _chosen(column: array[int], is_fresh: Sequence[bool]) -> array[int]:
    return array("q", (value for value, fresh in zip(column, is_fresh, strict=True) if fresh))


def _declared(columns: dict[str, str]) -> str:
    return ", ".join(f'"{name}" {kind}' for name, kind in columns.items())


def _selected(columns: Iterable[Column]) -> str:
    return f"SELECT {', '.join(column.selected for column in columns)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
