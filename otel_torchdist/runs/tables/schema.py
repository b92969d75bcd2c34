"""The tables of a run: columns, types, meanings, and the computation of each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from otel_torchdist.model.kinds import Flag

Rule: TypeAlias = Callable[[Any, Mapping[str, Any]], Any]
"""Computes a column. Takes `pyarrow.compute` and the stored columns, and returns an array of any type."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        type: Type in DuckDB, a key of `ARROW_TYPES`.
        meaning: Description as Markdown.
        rule: Computes the values; None if they are stored under `name`.
    """

    name: str
    type: str
    meaning: str
    rule: Rule | None = None

    def values(self, compute: Any, stored: Mapping[str, Any]) -> Any:
        """Return the values, of any type."""
        return stored[self.name] if self.rule is None else self.rule(compute, stored)


ARROW_TYPES: Final = {
    "INTEGER": "int32", "BIGINT": "int64", "VARCHAR": "string", "BOOLEAN": "bool", "TIMESTAMP_NS": "timestamp[ns]",
    "INTEGER[]": "list",
}  # fmt: skip
"""Names of pyarrow's types. List items are `int32`."""


def _after(name: str) -> Rule:
    """Return a rule for a time after the entry, stored plus 1, or as 0 if unknown."""
    return lambda compute, stored: compute.subtract(_null_if(compute, stored[name], 0), 1)


def _wall(name: str) -> Rule:
    return lambda compute, stored: compute.add(stored[name], stored["wall_offset_ns"])


def _flag(flag: Flag) -> Rule:
    return lambda compute, stored: compute.not_equal(compute.bit_wise_and(stored["flags"], int(flag)), 0)


def _null_if(compute: Any, values: Any, null_value: int) -> Any:
    return compute.if_else(compute.equal(values, null_value), None, values)


def _peer(compute: Any, stored: Mapping[str, Any]) -> Any:
    return _null_if(compute, stored["peer"], -1)


def _size(compute: Any, stored: Mapping[str, Any]) -> Any:
    return compute.list_value_length(stored["ranks"])


def _tag(compute: Any, stored: Mapping[str, Any]) -> Any:
    return compute.if_else(_P2P(compute, stored), _null_if(compute, stored["tag"], -1), None)


PLAN: Final = (
    "kind", "flags", "operation", "reduce_op", "dtypes", "shapes", "device", "group_key", "function", "file", "line",
    "label", "thread", "failure", "ended_how", "started_how", "phase", "is_timed",
)  # fmt: skip
"""Properties shared by operations from one call site. Other properties are stored under `OPERATION_COLUMNS`."""

_P2P: Final = _flag(Flag.POINT_TO_POINT)

OPERATIONS: Final = (
    Column("rank", "INTEGER", "Global rank."),
    Column("number", "BIGINT", "The record's number on the tape of its rank; with `rank` it is unique."),
    Column("step", "BIGINT", "The rank's step when it entered the operation."),
    Column("kind", "VARCHAR", "`operation`, or `rendezvous` for the creation of a group."),
    Column("operation", "VARCHAR", "`all_reduce`, `send`, …"),
    Column("reduce_op", "VARCHAR", "`sum`, `avg`, …; null where there is none."),
    Column("dtypes", "VARCHAR", "Types of its tensors, separated by commas."),
    Column("shapes", "VARCHAR", "Shapes of its tensors, such as `[64, 128] []`; at most eight."),
    Column("device", "VARCHAR", "Type of the device."),
    Column("group_key", "VARCHAR", "The group, see `groups`; null if it is not known."),
    Column(
        "sequence",
        "BIGINT",
        "Position among the collectives of its group, from 1: members' calls with the same `group_key` and `sequence` "
        "belong together. For point-to-point operations, position among operations with the same peers and tag.",
    ),
    Column("is_point_to_point", "BOOLEAN", "Whether it is a send or receive between two ranks.", _P2P),
    Column("peer", "INTEGER", "Global rank of the peer or root; null if there is none.", _peer),
    Column("tag", "INTEGER", "Tag of a point-to-point operation; null if it is not recorded.", _tag),
    Column("message_bytes", "BIGINT", "Bytes that the rank contributed."),
    Column("entered_at", "TIMESTAMP_NS", "When the call was entered, UTC.", _wall("entered_ns")),
    Column(
        "entered_ns",
        "BIGINT",
        "The same by the monotonic clock of the node, in nanoseconds: compare it only between ranks of one `clock`.",
    ),
    Column(
        "duration_ns",
        "BIGINT",
        "Time from the entry to the end, as exact as `ended_how` states; null while the operation is open.",
        _after("completed_ns"),
    ),
    Column(
        "ended_how",
        "VARCHAR",
        "How the end is known: `call`, `wait`, `callback`, `event` (exact), `poll`, `watchdog` (coarse), `untracked`, "
        "`abandoned` (not known), `failed`; null while it is open.",
    ),
    Column(
        "is_timed",
        "BOOLEAN",
        "Whether its end, and its start on a device, are known exactly, for any value of `ended_how`: then it has a "
        "duration, as in `analyze`.",
    ),
    Column(
        "returned_after_ns",
        "BIGINT",
        "Time from the entry until the call returned, unless the return was the end.",
        _after("returned_ns"),
    ),
    Column(
        "wait_entered_after_ns",
        "BIGINT",
        "Time from the entry until a wait for the operation began.",
        _after("wait_entered_ns"),
    ),
    Column(
        "wait_returned_after_ns", "BIGINT", "Time from the entry until that wait returned.", _after("wait_returned_ns")
    ),
    Column(
        "started_after_ns",
        "BIGINT",
        "Time from the entry until the device started the operation.",
        _after("started_ns"),
    ),
    Column("started_how", "VARCHAR", "How the start on the device is known."),
    Column("phase", "VARCHAR", "`backward`, `outside_backward`, or null if unknown."),
    Column("is_async", "BOOLEAN", "Whether the call returned a Work.", _flag(Flag.ASYNC)),
    Column("is_on_device", "BOOLEAN", "Whether it ran on a device.", _flag(Flag.ON_DEVICE)),
    Column("function", "VARCHAR", "The function of the user's code that called it; null if there is none."),
    Column("file", "VARCHAR", "Its file."),
    Column("line", "INTEGER", "The line of the call."),
    Column(
        "label",
        "VARCHAR",
        "Purpose of the call (`FSDP layers.3`), or its label of `record_comm`; null if there is neither.",
    ),
    Column("thread", "BIGINT", "Native id of the calling thread."),
    Column("failure", "VARCHAR", "Type of the exception that it raised; null if none."),
)

STEPS: Final = (
    Column("rank", "INTEGER", "Global rank."),
    Column("step", "BIGINT", "The step."),
    Column("ended_at", "TIMESTAMP_NS", "When it ended, UTC.", _wall("ended_ns")),
    Column("ended_ns", "BIGINT", "The same by the monotonic clock of the node."),
    Column("sequence", "BIGINT", "Number of collectives that the rank had issued in the default group by that time."),
    Column("duration_ns", "BIGINT", "Time since the end of the step before; null if that is not recorded."),
)

GROUPS: Final = (
    Column("group_key", "VARCHAR", "Eight hex digits, the same on all members; unique."),
    Column("name", "VARCHAR", "torch's name."),
    Column("description", "VARCHAR", "Its purpose, such as `mesh_dp`; null if unknown."),
    Column("backend", "VARCHAR", "Its backend."),
    Column("size", "INTEGER", "Number of its members.", _size),
    Column("ranks", "INTEGER[]", "Their global ranks, ascending."),
    Column("is_aligned", "BOOLEAN", "Whether `sequence` can be compared between its members."),
)

RANKS: Final = (
    Column("rank", "INTEGER", "Global rank; unique."),
    Column("run_id", "VARCHAR", "The run, 32 hex digits."),
    Column("world_size", "INTEGER", "Ranks of the run."),
    Column("host", "VARCHAR", "Host name."),
    Column("clock", "VARCHAR", "The clock of its monotonic times: the same for ranks of one node."),
    Column("begun_at", "TIMESTAMP_NS", "When its recording began, UTC.", lambda _, stored: stored["begun_ns"]),
    Column("until_at", "TIMESTAMP_NS", "Its last sign of life, UTC.", _wall("until_ns")),
    Column("until_ns", "BIGINT", "The same by the monotonic clock of the node."),
    Column(
        "state",
        "VARCHAR",
        "Its last recorded state: `running` (also after a `SIGKILL`), `finished`, `failed`.",
    ),
    Column("failure", "VARCHAR", "Type of the exception that ended it; null if none."),
    Column("operations", "BIGINT", "Number of its operations in the table."),
    Column("lost", "BIGINT", "Number of records known to be missing."),
)

ACTIVITIES: Final = (
    Column("rank", "INTEGER", "Global rank."),
    Column("number", "BIGINT", "The record's number on the tape of its rank; with `rank` it is unique."),
    Column("step", "BIGINT", "The rank's step when the activity began."),
    Column("kind", "VARCHAR", "`optimizer step`, `data wait`, `backward`, `checkpoint save`, …"),
    Column("detail", "VARCHAR", "The optimizer, data set, path or function; null if there is none."),
    Column("entered_at", "TIMESTAMP_NS", "When it began, UTC.", _wall("entered_ns")),
    Column("entered_ns", "BIGINT", "The same by the monotonic clock of the node."),
    Column("duration_ns", "BIGINT", "Time from begin to end; null while it is open.", _after("completed_ns")),
    Column("ended_how", "VARCHAR", "How the end is known; null while it is open.", lambda _, stored: stored["how"]),
    Column("thread", "BIGINT", "Native id of its thread."),
    Column("failure", "VARCHAR", "Type of the exception that ended it; null if none."),
)

TABLES: Final = {"operations": OPERATIONS, "steps": STEPS, "groups": GROUPS, "ranks": RANKS}
"""The tables of `export --parquet`."""
API_TABLES: Final = {**TABLES, "activities": ACTIVITIES}
"""The tables of the Python API."""
