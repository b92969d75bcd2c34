"""`export --parquet`: the tables of a run as files, written by pyarrow."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.runs.tables.building import TablesBuilder, arrow_schema
from otel_torchdist.runs.tables.schema import TABLES
from otel_torchdist.sources.archive.decoding import Columns
from otel_torchdist.system.this_process.commands import delaying_signals

ROWS_AT_ONCE: Final = 1 << 18
"""Rows of a row group, which is held in memory."""
_UNFINISHED: Final = ".otel-torchdist-"
_DELTA_ENCODED: Final = ("number", "step", "sequence")
"""Columns that, like all times, are encoded as differences. This saves a fifth of their size."""


class ParquetError(TorchDistError):
    """Parquet files cannot be written; the message names them and gives the reason."""


@dataclass(frozen=True, slots=True)
class ExportedTables:
    """The size of the exported tables.

    Attributes:
        rows: Number of rows of each table.
        bytes: Total size of the files.
    """

    rows: dict[str, int]
    bytes: int


def check_tables_folder(folder: Path, force: bool) -> None:
    """Check that files may be written into a folder: it is missing, empty, or holds an earlier export.

    Raises:
        ParquetError: It must not be written.
    """
    try:
        names_in_folder = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise ParquetError(f"{folder}: {error.strerror}") from error
    foreign = [name for name in names_in_folder if name not in _FILES and not name.startswith(_UNFINISHED)]
    if foreign and not force:
        raise ParquetError(
            f"{folder}: it holds files of other programs ({foreign[0]}); name another folder, or use --force, "
            "which leaves other files alone"
        )


def write_parquet(folder: Path, ranks: Iterable[Iterable[Columns]], rows_at_once: int = ROWS_AT_ONCE) -> ExportedTables:
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
        files = _ParquetFiles(arrow, unfinished, rows_at_once)
        with files as tables:
            for segments in ranks:
                tables.add_rank(segments)
        rows = files.rows
        size = sum((unfinished / name).stat().st_size for name in _FILES)
        with delaying_signals():
            for name in _FILES:
                (unfinished / name).replace(folder / name)
        return ExportedTables(rows, size)
    except (OSError, arrow.ArrowException) as error:
        raise ParquetError(f"{folder}: {str(error).partition(chr(10))[0]}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # not empty: it holds the tables
                folder.rmdir()


_FILES: Final = tuple(f"{name}.parquet" for name in TABLES)


class _ParquetFile:
    """The file of one table. Rows within a row group are sorted by the first two columns."""

    def __init__(self, arrow: Any, folder: Path, name: str) -> None:
        self._schema = arrow_schema(arrow, TABLES[name])
        delta_encoded = [
            column for column in self._schema.names if column in _DELTA_ENCODED or column.endswith(("_ns", "_at"))
        ]
        self._writer: Any = importlib.import_module("pyarrow.parquet").ParquetWriter(
            folder / f"{name}.parquet",
            self._schema,
            version="2.6",
            compression="zstd",
            use_dictionary=[column for column in self._schema.names if column not in delta_encoded],
            column_encoding=dict.fromkeys(delta_encoded, "DELTA_BINARY_PACKED"),
            store_schema=False,  # readers see plain strings instead of Arrow's dictionaries
        )
        self.rows = 0  # written

    def write(self, rows: Any) -> None:
        """Write rows as a row group."""
        self._writer.write_table(rows.cast(self._schema), row_group_size=rows.num_rows)
        self.rows += rows.num_rows

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()


class _ParquetFiles:
    """The files of all tables. Pending rows become a row group once there are `rows_at_once` of them."""

    def __init__(self, arrow: Any, folder: Path, rows_at_once: int) -> None:
        self._files = {name: _ParquetFile(arrow, folder, name) for name in TABLES}
        self._builder = TablesBuilder(arrow, lambda name, rows: self._files[name].write(rows), rows_at_once)

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each table."""
        return {name: file.rows for name, file in self._files.items()}

    def __enter__(self) -> TablesBuilder:
        return self._builder

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the pending rows, unless there was an error, and close the files."""
        try:
            if kind is None:
                self._builder.finish()
        finally:
            for file in self._files.values():
                file.close()
