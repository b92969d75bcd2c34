"""Builds the tables of a run from its records.

Columns of a segment become columns of Arrow without a Python loop over rows. The properties that operations from one
call site share (a plan, see `PLAN`) are converted once for each batch, and their texts stay in dictionaries.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from otel_torchdist.model.activity_kinds import TRAITS
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import ActivityKind, How, TapeState
from otel_torchdist.model.names import GroupName
from otel_torchdist.runs.tables.plans import history_rows, values_of
from otel_torchdist.runs.tables.schema import ARROW_TYPES, PLAN, TABLES, Column
from otel_torchdist.sources.archive.decoding import Columns
from otel_torchdist.sources.archive.format import ACTIVITY_COLUMNS, OPERATION_COLUMNS, STEP_COLUMNS
from otel_torchdist.sources.archive.reading import fresh_rows
from otel_torchdist.tape.names.reader import Names

Sink: TypeAlias = Callable[[str, Any], object]
"""Receives the name of a table, and a batch of its rows as an Arrow table."""


def arrow_schema(arrow: Any, columns: Sequence[Column]) -> Any:
    """Return the Arrow schema of a table."""
    return arrow.schema([(column.name, _arrow_type(arrow, column)) for column in columns])


class _TableRows:
    """The pending rows of one table."""

    def __init__(self, arrow: Any, columns: Sequence[Column]) -> None:
        self._arrow = arrow
        self._compute: Any = importlib.import_module("pyarrow.compute")
        self._columns = columns
        self._schema = arrow_schema(arrow, columns)
        self._pending: list[Any] = []
        self.pending_rows = 0

    def add(self, stored: Mapping[str, Any]) -> None:
        """Add rows, as Arrow columns or sequences of values."""
        self._pending.append(self._arrow.table(dict(stored)))
        self.pending_rows += self._pending[-1].num_rows

    def take(self, plans: Sequence[tuple[Any, ...]] = ()) -> Any:
        """Return the pending rows, sorted by the first two columns. Texts of plans are dictionary-encoded.

        Args:
            plans: Values of each plan, in the order of `PLAN`. The rows' column `plan` holds indexes into this list.
        """
        if not self.pending_rows:
            return self._schema.empty_table()
        pending = self._arrow.concat_tables(self._pending, promote_options="permissive")
        stored = {name: pending[name] for name in pending.column_names}
        for name, values in zip(PLAN, zip(*plans, strict=True), strict=False):
            stored[name] = self._arrow.array(values).dictionary_encode().take(stored["plan"])
        arrays = [self._cast(column, column.values(self._compute, stored)) for column in self._columns]
        rows = self._arrow.table(arrays, names=self._schema.names)
        self._pending, self.pending_rows = [], 0
        return rows.sort_by([(name, "ascending") for name in self._schema.names[:2]])

    def _cast(self, column: Column, values: Any) -> Any:
        """Cast values to the type of a column; texts stay dictionary-encoded."""
        arrow_type = self._schema.field(column.name).type
        if column.type == "VARCHAR" and self._arrow.types.is_dictionary(values.type):
            if self._arrow.types.is_null(values.type.value_type):  # no plan has a value
                return self._arrow.nulls(len(values), arrow_type)
            return values
        return values.cast(arrow_type)


class TablesBuilder:
    """Builds the tables of a run, one rank at a time. The sink receives rows once there are `rows_at_once` of them."""

    def __init__(
        self, arrow: Any, sink: Sink, rows_at_once: int, tables: Mapping[str, Sequence[Column]] = TABLES
    ) -> None:
        """Start without rows.

        Args:
            arrow: The module `pyarrow`.
            sink: Receives the rows.
            rows_at_once: Number of rows that completes a batch. A batch may exceed it by the rows of one segment.
            tables: The tables to build.
        """
        self._arrow = arrow
        self._sink = sink
        self._rows_at_once = rows_at_once
        self._rows = {name: _TableRows(arrow, columns) for name, columns in tables.items()}
        self._operations = self._rows["operations"]
        self._plans: dict[tuple[Any, ...], int] = {}
        self._plan_values: list[tuple[Any, ...]] = []
        self._groups: set[str] = set()

    def finish(self) -> None:
        """Pass the pending rows to the sink."""
        self._flush_operations()
        for name, rows in self._rows.items():
            if rows.pending_rows:
                self._sink(name, rows.take())

    def add_rank(self, segments: Iterable[Columns]) -> None:
        """Add the segments of a rank."""
        operations, names, last = 0, Names(), None
        step_ends = _StepEnds()
        activities = _ActivityRows()
        for columns, is_fresh, is_last in fresh_rows(segments):
            names.update(columns.names)
            ended = [self._as_arrow(column) for column in columns.ended]
            if not all(is_fresh):
                ended = [column.filter(self._arrow.array(is_fresh)) for column in ended]
            operations += self._add_operations(columns, ended, names)
            if is_last:  # later segments repeat an operation that is open in an earlier one
                operations += self._add_operations(columns, [self._as_arrow(column) for column in columns.open], names)
            self._add_steps(columns, step_ends)
            activities.update(columns, names)
            last = columns
        if last is not None:
            self._add_groups({name.key: name for name in map(names.group, names.group_ids()) if name is not None})
            self._rows["ranks"].add({column: [value] for column, value in _rank_row(last, operations).items()})
            if "activities" in self._rows and activities.rows:
                self._rows["activities"].add(_columns_of(list(activities.rows.values())))

    def add_history(self, history: RankHistory) -> None:
        """Add the history of a rank from a source without segments, such as a dump."""
        rows, plans = history_rows(history)
        if rows["number"]:
            ids = [self._plan_id((history.rank, index), values) for index, values in enumerate(plans)]
            rows["plan"] = array("q", [ids[plan] for plan in rows["plan"]])
            count = len(rows["number"])
            constants = {"rank": history.rank, "wall_offset_ns": history.wall_offset_ns}
            table = {name: self._as_arrow(column) for name, column in rows.items()}
            self._operations.add({**self._constant_columns(constants, count), **table})
        if history.steps:
            step_ends = _StepEnds()
            self._rows["steps"].add(
                _columns_of(
                    [
                        {
                            "rank": history.rank,
                            "wall_offset_ns": history.wall_offset_ns,
                            "ended_ns": mark.ended_ns,
                            "step": mark.step,
                            "sequence": mark.sequence,
                            "duration_ns": step_ends.duration_ns(mark.step, mark.ended_ns),
                        }
                        for mark in history.steps
                    ]
                )
            )
        self._add_groups({view.key: view.name for view in history.groups})
        self._rows["ranks"].add({column: [value] for column, value in _history_rank_row(history).items()})

    def _add_operations(self, columns: Columns, table: Sequence[Any], names: Names) -> int:
        count = len(table[0])
        if not count:
            return 0
        nonce = columns.origin.nonce
        ids = [self._plan_id((nonce, plan), lambda plan=plan: values_of(plan, names)) for plan in columns.plans]
        rows = dict(zip(OPERATION_COLUMNS, table, strict=True))
        rows["plan"] = self._arrow.array(ids).take(rows["plan"])
        self._operations.add({**self._constants_of(columns, count), **rows})
        if self._operations.pending_rows >= self._rows_at_once:
            self._flush_operations()
        return count

    def _flush_operations(self) -> None:
        if self._operations.pending_rows:
            self._sink("operations", self._operations.take(self._plan_values))
        self._plans, self._plan_values = {}, []

    def _plan_id(self, key: tuple[Any, ...], values: tuple[Any, ...] | Callable[[], tuple[Any, ...]]) -> int:
        index = self._plans.get(key)
        if index is None:
            index = self._plans[key] = len(self._plans)
            self._plan_values.append(values() if callable(values) else values)
        return index

    def _add_steps(self, columns: Columns, step_ends: _StepEnds) -> None:
        count = len(columns.steps[0])
        steps: dict[str, Any] = dict(zip(STEP_COLUMNS, map(self._as_arrow, columns.steps), strict=True))
        _, ended, numbers, *_ = columns.steps
        durations = [step_ends.duration_ns(step, ended_ns) for step, ended_ns in zip(numbers, ended, strict=True)]
        steps["duration_ns"] = self._arrow.array(durations, self._arrow.int64())
        self._rows["steps"].add({**self._constants_of(columns, count), **steps})
        if self._rows["steps"].pending_rows >= self._rows_at_once:
            self._sink("steps", self._rows["steps"].take())

    def _add_groups(self, groups: Mapping[str, GroupName]) -> None:
        for key, name in groups.items():
            if key not in self._groups:
                self._rows["groups"].add({column: [value] for column, value in _group_row(key, name).items()})
        self._groups |= groups.keys()

    def _constants_of(self, columns: Columns, count: int) -> dict[str, Any]:
        constants = {"rank": columns.origin.rank, "wall_offset_ns": columns.moment.wall_offset_ns}
        return self._constant_columns(constants, count)

    def _constant_columns(self, constants: Mapping[str, int], count: int) -> dict[str, Any]:
        """Return columns with the same value in all rows."""
        return {name: self._arrow.repeat(value, count) for name, value in constants.items()}

    def _as_arrow(self, column: array[int]) -> Any:
        """Return a column of 64-bit integers without copying it."""
        return self._arrow.Array.from_buffers(self._arrow.int64(), len(column), [None, self._arrow.py_buffer(column)])


class _StepEnds:
    """The durations of a rank's steps, from the end of the step before."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def duration_ns(self, step: int, ended_ns: int) -> int | None:
        last, self._last = self._last, (step, ended_ns)
        return ended_ns - last[1] if last is not None and last[0] == step - 1 else None


_HOW_NAMES: Final = {int(how): how.name.lower() for how in How}


class _ActivityRows:
    """The activities of a rank by number. Later segments replace an activity that was open."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def update(self, columns: Columns, names: Names) -> None:
        constants = {"rank": columns.origin.rank, "wall_offset_ns": columns.moment.wall_offset_ns}
        for values in zip(*columns.activities, strict=True):
            row = dict(zip(ACTIVITY_COLUMNS, values, strict=True))
            self.rows[row["number"]] = {
                **constants,
                **row,
                "kind": TRAITS[ActivityKind(row["kind"])].title,
                "detail": (names.text(row["detail"]) or None) if row["detail"] else None,
                "how": _HOW_NAMES.get(row["how"]) if row["how"] else None,
                "failure": names.text(row["failure"]) if row["failure"] else None,
            }


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _arrow_type(arrow: Any, column: Column) -> Any:
    name = ARROW_TYPES[column.type]
    return arrow.list_(arrow.int32()) if name == "list" else arrow.type_for_alias(name)


def _group_row(key: str, name: GroupName) -> dict[str, Any]:
    return {
        "group_key": key,
        "name": name.name,
        "description": name.description or None,
        "backend": name.backend,
        "ranks": list(name.ranks),
        "is_aligned": name.aligned,
    }


def _rank_row(last: Columns, operations: int) -> dict[str, Any]:
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


def _history_rank_row(history: RankHistory) -> dict[str, Any]:
    entered = [view.record.entered_ns for view in history.operations]
    return {
        "rank": history.rank,
        "run_id": None,
        "world_size": history.world_size or None,
        "host": history.host or None,
        "clock": history.clock or None,
        "begun_ns": min(entered) + history.wall_offset_ns if entered else None,
        "until_ns": history.until_ns or None,
        "wall_offset_ns": history.wall_offset_ns,
        "state": None,
        "failure": None,
        "operations": len(history.operations),
        "lost": history.lost,
    }


def _state(state: int) -> str:
    try:
        return TapeState(state).name.lower()
    except ValueError:
        return "unknown"
