"""The calls of a rank, counted without us: by torch's profiler, gloo's flight recorder and the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.profiled import SCHEMAS

DEFAULT: Final = "default_pg"
TEAM: Final = "team"
GROUPS: Final = (DEFAULT, TEAM)
_ITEM_BYTES: Final = {"Byte": 1, "Int": 4, "Float": 4, "Long": 8, "Double": 8}
_ROOT: Final = {"broadcast": 2, "scatter": 3, "gather": 3}
"""Operations with a root, and which of their arguments that is."""
_MESSAGES: Final = ("send", "recv")
_GLOO: Final = {"all_gather_into_tensor": "all_gather"}
"""Operations with another name in the flight recorder."""
_CLASSES: Final = {"4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20}


@dataclass(frozen=True)
class Call:
    """A call of a rank.

    Attributes:
        operation: Its name in `torch.distributed`.
        group: Description of the group.
        size: Bytes that the rank has contributed.
        step: The step in which it was called.
        sequence: Its place among the collectives of its group; 0 for messages.
        created_ns: When gloo had it, by the wall clock; 0 for messages.
        is_waited_for: Whether the call itself has waited for the end.
        root: The rank that others get data from, or give it to; None if there is none.
    """

    operation: str
    group: str
    size: int
    step: int
    sequence: int
    created_ns: int
    is_waited_for: bool
    root: int | None

    @property
    def size_class(self) -> str:
        """The class of its size, as in metrics."""
        return next(name for name, most in _CLASSES.items() if self.size <= most)


@dataclass(frozen=True)
class Witness:
    """The counts of a rank that were made without us.

    Attributes:
        report: What the program has printed.
        calls: What it has called, torch's own calls included, in order.
    """

    report: Mapping[str, Any]
    calls: list[Call]

    @property
    def rank(self) -> int:
        """The rank."""
        return self.report["rank"]

    @property
    def steps(self) -> int:
        """Number of steps that the program has ended."""
        return len(self.report["ended"])

    @property
    def took_s(self) -> float:
        """From the first call to the last one, in seconds."""
        begun_ns, ended_ns = self.report["during"]
        return (ended_ns - begun_ns) / 1e9

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """How often it has called each operation, by group."""
        return Counter((call.group, call.operation) for call in self.calls)

    @property
    def sizes(self) -> Counter[tuple[str, str]]:
        """Bytes that it has contributed to each operation, by group; zeros included."""
        sizes: Counter[tuple[str, str]] = Counter()
        for call in self.calls:
            sizes[call.group, call.operation] += call.size
        return sizes

    def seconds(self, *parts: str) -> float:
        """Time of parts of the program by its own clock."""
        return sum(self.report["seconds"].get(part, 0.0) for part in parts)

    def step_bounds_s(self, number: int, before: int) -> tuple[float, float]:
        """The least and the most that can lie between the ends of two steps."""
        ended = self.report["ended"]
        return (ended[number][0] - ended[before][1]) / 1e9, (ended[number][1] - ended[before][0]) / 1e9


def testify(report: Mapping[str, Any]) -> Witness:
    """Put together what profiler, flight recorder and program have counted on a rank.

    The profiler has the names and roots of all calls; the flight recorder has groups and sizes, but no messages.
    """
    issued = [(SCHEMAS[event["name"]], event["given"]) for event in report["issued"]]
    recorded = iter(report["recorded"])
    calls: list[Call] = []
    for operation, given in issued:
        if operation in _MESSAGES:
            size = report["sizes"][f"{DEFAULT}/{operation}"] // report["calls"][f"{DEFAULT}/{operation}"]
            calls.append(Call(operation, DEFAULT, size, len(report["ended"]), 0, 0, True, None))
        else:
            calls.append(_collective(report, operation, given, next(recorded)))
    assert not list(recorded), "the flight recorder has more collectives than the profiler"
    return Witness(report, calls)


def _collective(report: Mapping[str, Any], operation: str, given: list[str], entry: Mapping[str, Any]) -> Call:
    assert entry["profiling_name"] == f"gloo:{_GLOO.get(operation, operation)}", (operation, entry)
    root = int(given[_ROOT[operation]]) if operation in _ROOT else None
    gives_all = root is None or operation == "gather" or root == report["rank"]
    created_ns = entry["time_created_ns"]
    ended_ns = [report["clock_offset_ns"] + before for before, _ in report["ended"]]
    return Call(
        operation=operation,
        group=entry["process_group"][1],
        size=_bytes(entry["input_sizes"], entry["input_dtypes"]) if gives_all and operation != "barrier" else 0,
        step=sum(end < created_ns for end in ended_ns),
        sequence=entry["collective_seq_id"],
        created_ns=created_ns,
        is_waited_for="False" in given,
        root=root,
    )


def _bytes(sizes: Iterable[Iterable[int]], dtypes: Iterable[str]) -> int:
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=True):
        elements = 1
        for size in shape:
            elements *= size
        total += elements * _ITEM_BYTES[dtype]
    return total
