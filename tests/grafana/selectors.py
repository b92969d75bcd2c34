"""The metrics that a query selects and how it aggregates them; enough of PromQL for the queries of our dashboards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SELECTOR: Final = re.compile(r"(?P<metric>[a-zA-Z_:][a-zA-Z0-9_:]*)\{(?P<matchers>[^}]*)\}")
_CALL: Final = re.compile(r"(?P<name>[a-z_]+)(?: by \((?P<labels>[^()]*)\))? ?$")
_GROUPING: Final = {"avg", "count", "max", "min", "sum"}
_CHOOSING: Final = {"bottomk", "topk"}
_ONLY_CHOSEN: Final = re.compile(r" and on \([^()]*\) (?:top|bottom)k\(")


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric in a query.

    Attributes:
        metric: Its name.
        matchers: The text between its braces.
        groupings: Labels that each aggregation around it keeps, the innermost first.
        is_chosen_from: Whether only the largest or smallest few of its series are returned.
    """

    metric: str
    matchers: str
    groupings: tuple[frozenset[str], ...]
    is_chosen_from: bool


def selectors(expr: str) -> Iterator[Selector]:
    """Every metric in a query."""
    chosen = _ONLY_CHOSEN.search(expr) is not None
    for found in _SELECTOR.finditer(expr):
        calls = [_CALL.search(expr[:place]) for place in _open_parentheses(expr[: found.start()])]
        named = [call for call in reversed(calls) if call]
        yield Selector(
            found["metric"],
            found["matchers"],
            tuple(_labels(call["labels"]) for call in named if call["name"] in _GROUPING),
            chosen or any(call["name"] in _CHOOSING for call in named),
        )


def kept_labels(expr: str) -> set[str]:
    """All labels that some aggregation of a query keeps."""
    return {label for labels in re.findall(r" by \(([^()]*)\)", expr) for label in _labels(labels)}


def _labels(text: str | None) -> frozenset[str]:
    return frozenset(filter(None, (label.strip() for label in (text or "").split(","))))


def _open_parentheses(text: str) -> list[int]:
    """Positions of the parentheses that are still open at the end of a text; those in quotes do not count."""
    places: list[int] = []
    quoted = False
    for place, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif not quoted and character == "(":
            places.append(place)
        elif not quoted and character == ")":
            places.pop()
    return places
