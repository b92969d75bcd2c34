"""`export --parquet`: the operations of a run as tables, written by pyarrow.

Columns of the archive become columns of Arrow without a Python loop over rows. The properties that operations from one
call site share are converted once for each row group, and their texts stay in dictionaries.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.cli.export.interrupts import uninterrupted
from otel_torchdist.cli.export.tables import ARROW_TYPES, PLAN, TABLES, Column
from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.kinds import How, Phase, RecordKind, TapeState
from otel_torchdist.model.names import GroupName, unpack_label
from otel_torchdist.model.operations import COARSE, EXACT
from otel_torchdist.sources.archive.decoding import Columns
from otel_torchdist.sources.archive.format import OPERATION_COLUMNS, STEP_COLUMNS
from otel_torchdist.sources.archive.reading import fresh_rows
from otel_torchdist.tape.names.reader import Names

ROWS_AT_ONCE: Final = 1 << 18
"""Rows of a row group, which is held in memory."""
_UNFINISHED: Final = ".otel-torchdist-"
_GROWING: Final = ("number", "step", "sequence")
"""Columns that, like all times, are encoded as differences. This saves a fifth of their size."""


class ParquetError(TorchDistError):
    """Parquet files cannot be written; the message names them and gives the reason."""


@dataclass(frozen=True, slots=True)
class Written:
    """The size of an export.

    Attributes:
        rows: Number of rows of each table.
        bytes: Total size of the files.
    """

    rows: dict[str, int]
    bytes: int


def check_place(folder: Path, force: bool) -> None:
    """Check that files may be written into a folder: it is missing, empty, or holds an earlier export.

    Raises:
        ParquetError: It must not be written.
    """
    try:
        held = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise ParquetError(f"{folder}: {error.strerror}") from error
    foreign = [name for name in held if name not in _FILES and not name.startswith(_UNFINISHED)]
    if foreign and not force:
        raise ParquetError(
            f"{folder}: it holds files of other programs ({foreign[0]}); name another folder, or use --force, "
            "which leaves other files alone"
        )


def write_parquet(folder: Path, ranks: Iterable[Iterable[Columns]], rows_at_once: int = ROWS_AT_ONCE) -> Written:
    """Write the tables of a run into a folder. Files there are replaced once all new ones are complete.

    Args:
        folder: Created if missing.
        ranks: The segments of each rank.
        rows_at_once: Number of rows that completes a row group. A group may exceed it by the rows of one segment.

    Raises:
        ImportError: pyarrow is not installed.
        ParquetError: The files cannot be written.
    """
    arrow: Any = importlib.import_module("pyarrow")
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    except OSError as error:
        raise ParquetError(f"{folder}: {error.strerror}") from error
    try:
        with _Tables(arrow, unfinished, rows_at_once) as tables:
            for segments in ranks:
                tables.add_rank(segments)
        rows = tables.rows
        size = sum((unfinished / name).stat().st_size for name in _FILES)
        with uninterrupted():
            for name in _FILES:
                (unfinished / name).replace(folder / name)
        return Written(rows, size)
    except (OSError, arrow.ArrowException) as error:
        raise ParquetError(f"{folder}: {str(error).partition(chr(10))[0]}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # not empty: it holds the tables
                folder.rmdir()


_FILES: Final = tuple(f"{name}.parquet" for name in TABLES)


class _Sheet:
    """A table being written. Rows within a row group are sorted by the first two columns."""

    def __init__(self, arrow: Any, folder: Path, name: str) -> None:
        self._arrow = arrow
        self._compute: Any = importlib.import_module("pyarrow.compute")
        self._columns = TABLES[name]
        self._schema = arrow.schema([(column.name, _arrow_type(arrow, column)) for column in self._columns])
        grow = [
            column.name for column in self._columns if column.name in _GROWING or column.name.endswith(("_ns", "_at"))
        ]
        self._writer: Any = importlib.import_module("pyarrow.parquet").ParquetWriter(
            folder / f"{name}.parquet",
            self._schema,
            version="2.6",
            compression="zstd",
            use_dictionary=[column.name for column in self._columns if column.name not in grow],
            column_encoding=dict.fromkeys(grow, "DELTA_BINARY_PACKED"),
            store_schema=False,  # readers see plain strings instead of Arrow's dictionaries
        )
        self._pending: list[Any] = []
        self.waiting = 0
        self.rows = 0

    def add(self, stored: Mapping[str, Any]) -> None:
        """Add rows, as Arrow columns or sequences of values."""
        self._pending.append(self._arrow.table(dict(stored)))
        self.waiting += self._pending[-1].num_rows

    def write(self, plans: Sequence[tuple[Any, ...]] = ()) -> None:
        """Write the pending rows as a row group.

        Args:
            plans: Plans by the index that the rows' column `plan` holds.
        """
        if not self.waiting:
            return
        waiting = self._arrow.concat_tables(self._pending, promote_options="permissive")
        stored = {name: waiting[name] for name in waiting.column_names}
        for name, values in zip(PLAN, zip(*plans, strict=True), strict=False):
            stored[name] = self._arrow.array(values).dictionary_encode().take(stored["plan"])
        arrays = [self._cast(column, column.values(self._compute, stored)) for column in self._columns]
        rows = self._arrow.table(arrays, names=self._schema.names)
        rows = rows.sort_by([(name, "ascending") for name in self._schema.names[:2]])
        self._writer.write_table(rows.cast(self._schema), row_group_size=self.waiting)
        self.rows += self.waiting
        self._pending, self.waiting = [], 0

    def _cast(self, column: Column, values: Any) -> Any:
        """Cast values to the type of a column; texts stay dictionary-encoded until they are written."""
        if column.type == "VARCHAR" and self._arrow.types.is_dictionary(values.type):
            return values
        return values.cast(self._schema.field(column.name).type)

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()


class _Tables:
    """The tables being written. Pending rows become a row group once there are enough."""

    def __init__(self, arrow: Any, folder: Path, rows_at_once: int) -> None:
        self._arrow = arrow
        self._rows_at_once = rows_at_once
        self._sheets = {name: _Sheet(arrow, folder, name) for name in TABLES}
        self._operations = self._sheets["operations"]
        self._plans: dict[tuple[Any, ...], int] = {}
        self._described: list[tuple[Any, ...]] = []
        self._groups: set[str] = set()

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each table."""
        return {name: sheet.rows for name, sheet in self._sheets.items()}

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the pending rows, unless there was an error, and close the files."""
        try:
            if kind is None:
                self._write_operations()
                for sheet in self._sheets.values():
                    sheet.write()
        finally:
            for sheet in self._sheets.values():
                sheet.close()

    def add_rank(self, segments: Iterable[Columns]) -> None:
        operations, names, last = 0, Names(), None
        for columns, is_fresh, is_last in fresh_rows(segments):
            names.update(columns.names)
            ended = [self._numbers(column) for column in columns.ended]
            if not all(is_fresh):
                ended = [column.filter(self._arrow.array(is_fresh)) for column in ended]
            operations += self._add_operations(columns, ended, names)
            if is_last:  # operations open in earlier segments are in later ones
                operations += self._add_operations(columns, [self._numbers(column) for column in columns.open], names)
            self._add_steps(columns)
            last = columns
        if last is not None:
            self._add_groups(names)
            self._add_end(last, operations)

    def _add_operations(self, columns: Columns, table: Sequence[Any], names: Names) -> int:
        count = len(table[0])
        if not count:
            return 0
        ids = self._arrow.array([self._plan(columns.origin.nonce, plan, names) for plan in columns.plans])
        rows = dict(zip(OPERATION_COLUMNS, table, strict=True))
        rows["plan"] = ids.take(rows["plan"])
        self._operations.add({**self._fixed(columns, count), **rows})
        if self._operations.waiting >= self._rows_at_once:
            self._write_operations()
        return count

    def _write_operations(self) -> None:
        self._operations.write(self._described)
        self._plans, self._described = {}, []

    def _plan(self, nonce: int, plan: tuple[Any, ...], names: Names) -> int:
        index = self._plans.get((nonce, plan))
        if index is None:
            index = self._plans[nonce, plan] = len(self._plans)
            self._described.append(tuple(_described(plan, names)))
        return index

    def _add_steps(self, columns: Columns) -> None:
        steps = zip(STEP_COLUMNS, map(self._numbers, columns.steps), strict=True)
        self._sheets["steps"].add({**self._fixed(columns, len(columns.steps[0])), **dict(steps)})
        if self._sheets["steps"].waiting >= self._rows_at_once:
            self._sheets["steps"].write()

    def _add_groups(self, names: Names) -> None:
        groups = {name.key: name for name in map(names.group, names.group_ids()) if name is not None}
        for key, name in groups.items():
            if key not in self._groups:
                self._sheets["groups"].add({column: [value] for column, value in _group(key, name).items()})
        self._groups |= groups.keys()

    def _add_end(self, last: Columns, operations: int) -> None:
        self._sheets["ranks"].add({column: [value] for column, value in _end(last, operations).items()})

    def _fixed(self, columns: Columns, count: int) -> dict[str, Any]:
        """Return the columns with the same value in all rows of a segment."""
        fixed = {"rank": columns.origin.rank, "wall_offset_ns": columns.moment.wall_offset_ns}
        return {name: self._arrow.repeat(value, count) for name, value in fixed.items()}

    def _numbers(self, column: array[int]) -> Any:
        """Return a column of 64-bit integers without copying it."""
        return self._arrow.Array.from_buffers(self._arrow.int64(), len(column), [None, self._arrow.py_buffer(column)])


def _arrow_type(arrow: Any, column: Column) -> Any:
    name = ARROW_TYPES[column.type]
    return arrow.list_(arrow.int32()) if name == "list" else arrow.type_for_alias(name)


def _described(plan: tuple[Any, ...], names: Names) -> Iterator[Any]:
    """Yield the values of a plan, in the order of `PLAN`."""
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


def _group(key: str, name: GroupName) -> dict[str, Any]:
    return {
        "group_key": key,
        "name": name.name,
        "description": name.description or None,
        "backend": name.backend,
        "ranks": list(name.ranks),
        "is_aligned": name.aligned,
    }


def _end(last: Columns, operations: int) -> dict[str, Any]:
    origin, moment = last.origin, last.moment
    return {
        "rank": origin.rank,
        "run_id": f"{origin.run_id:032x}",
        "world_size": origin.world_size,
        "host": origin.host,
        "clock": f"{origin.boot_id:032x}",
        "begun_ns": origin.begun_ns,
        "until_ns": moment.taken_ns,
        "wall_offset_ns": moment.wall_offset_ns,
        "state": _state(moment.state),
        "failure": moment.failure or None,
        "operations": operations,
        "lost": moment.lost,
    }


def _state(state: int) -> str:
    try:
        return TapeState(state).name.lower()
    except ValueError:
        return "unknown"
