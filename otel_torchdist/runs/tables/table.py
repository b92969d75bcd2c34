"""A table that pandas, polars, DuckDB and pyarrow take without a copy, through Arrow's PyCapsule interface."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from enum import Enum
from html import escape
from typing import Any, Final, cast

import msgspec

from otel_torchdist.model.text import readable

SHOWN_ROWS: Final = 10
"""Rows that a notebook shows of a table."""
_MAX_CELL: Final = 60
_MAX_TEXT: Final = 1_000


def pyarrow() -> Any:
    """Import pyarrow.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise ImportError("tables need pyarrow: pip install 'otel-torchdist[analysis]'", name="pyarrow") from error


class Table:
    """A table in Arrow's format, immutable.

    pandas (`pandas.DataFrame.from_arrow(table)`), polars (`polars.DataFrame(table)`), pyarrow (`pyarrow.table(table)`)
    and DuckDB (`duckdb.sql("FROM table")`) take it as it is.
    """

    def __init__(self, arrow: Any, meanings: Mapping[str, str] | None = None) -> None:
        """Wrap a `pyarrow.Table`; `meanings` describes its columns."""
        self._arrow = arrow
        self._meanings = {} if meanings is None else dict(meanings)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._arrow.num_rows

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._arrow.column_names)

    @property
    def meanings(self) -> dict[str, str]:
        """Descriptions of the columns as Markdown, by name; empty for a table of structs, which `docs/json.md` has."""
        return dict(self._meanings)

    def to_arrow(self) -> Any:
        """Return the `pyarrow.Table`, which shares the memory of this table."""
        return self._arrow

    def __arrow_c_schema__(self) -> object:
        """Export the schema as a PyCapsule."""
        return self._arrow.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows as a PyCapsule."""
        return self._arrow.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<Table: {len(self):,} rows of {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """Return the first rows, for notebooks."""
        rows = self._arrow.slice(0, SHOWN_ROWS).to_pylist()
        more = len(self) - len(rows)
        note = f"<p>and {more:,} more rows</p>" if more > 0 else ""
        cells = [[_shortened(row[name]) for name in self.columns] for row in rows]
        return html_table(self.columns, cells) + note


def html_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as HTML without scripts or styles."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return "" if value is None else escape(readable(str(value), _MAX_TEXT))


def _shortened(value: object) -> str | None:
    return None if value is None else readable(str(value), _MAX_CELL)


def as_table(structs: Iterable[msgspec.Struct]) -> Table:
    """Return structs of one kind, such as `statistics().rows`, as a table.

    The fields of a struct inside get joined names: `group_key`, `call_site_line`. A map becomes a list of keys and
    values. A table of no structs has no columns.

    Raises:
        ImportError: pyarrow is not installed.
    """
    return Table(pyarrow().Table.from_pylist([_flat(struct) for struct in structs]))


def _flat(struct: msgspec.Struct) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, msgspec.Struct):
            flat |= {f"{name}_{inner}": inner_value for inner, inner_value in _flat(value).items()}
        else:
            flat[name] = _plain(value)
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _flat(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return [{"key": _plain(key), "value": _plain(inner)} for key, inner in pairs]
    if isinstance(value, tuple):
        return [_plain(inner) for inner in cast(tuple[Any, ...], value)]
    return value
