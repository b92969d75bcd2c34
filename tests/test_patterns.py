"""Regular expressions take time in proportion to their input: files, names and pages of others reach them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import otel_torchdist

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
AnyPattern = re.Pattern[Any]
METHODS = {"match": "match", "fullmatch": "fullmatch"}
"""Methods that begin at one place; all others try each place."""
SIZES = (20, 300, 4_000)
SLOW_S = 0.003
"""A linear pattern takes a tenth of it for the largest of these sizes."""


def modules() -> Iterator[ModuleType]:
    """All modules of the package; those that need an optional package that is not installed are left out."""
    for found in pkgutil.walk_packages(otel_torchdist.__path__, "otel_torchdist."):
        try:
            yield importlib.import_module(found.name)
        except ImportError:
            continue


def patterns_in(value: object) -> Iterator[AnyPattern]:
    """The patterns in a global, which may be a table of them."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from patterns_in([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from patterns_in(item)


def uses() -> dict[AnyPattern, set[str]]:
    """The patterns of the package, and how each is used: at one place, or searched."""
    found: dict[AnyPattern, set[str]] = {}
    for module in modules():
        used: dict[str, set[str]] = {}
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            method = METHODS.get(node.func.attr, "search")
            if isinstance(node.func.value, ast.Name):
                used.setdefault(node.func.value.id, set()).add(method)
            is_function = ast.unparse(node.func.value) == "re" and node.func.attr != "compile"
            if is_function and node.args and isinstance(node.args[0], ast.Constant):
                source: Any = node.args[0].value
                found.setdefault(re.compile(source), set()).add(method)
        for name, value in vars(module).items():
            for pattern in patterns_in(value):
                is_used_elsewhere = isinstance(value, re.Pattern) and name not in used
                found.setdefault(pattern, set()).update(set() if is_used_elsewhere else used.get(name, {"search"}))
    return {pattern: methods or {"search"} for pattern, methods in found.items()}


def letters(item: tuple[Any, Any]) -> str:
    """A few characters that an item of a parsed pattern can match."""
    kind, value = item
    if kind is parser.LITERAL:
        return chr(value)
    if kind is parser.NOT_LITERAL:
        return "".join(letter for letter in "a 0" if letter != chr(value))[:1]
    if kind is parser.ANY:
        return "a"
    if kind is parser.IN:
        every = [chr(code) for code in (*range(97, 123), *range(33, 97), *range(123, 127), 32, 9)]
        accepts = re.compile(f"[{''.join(map(part_of_class, value))}]", re.DOTALL)
        return "".join(letter for letter in every if accepts.match(letter))[:1] or "a"
    return ""


def part_of_class(item: tuple[Any, Any]) -> str:
    """A part of a class of characters, as it is written."""
    kind, value = item
    if kind is parser.NEGATE:
        return "^"
    if kind is parser.RANGE:
        return f"\\x{value[0]:02x}-\\x{min(value[1], 255):02x}"
    if kind is parser.CATEGORY:
        return {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}.get(
            str(value), {"CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_NOT_SPACE": r"\S"}.get(str(value), r"\W")
        )
    return f"\\x{value:02x}" if value < 256 else chr(value)


def samples(items: Iterable[tuple[Any, Any]], before: str, runs: list[tuple[str, str]]) -> str:
    """Return a text that the items match behind `before`; collects what is before each repetition, and what repeats."""
    text = before
    ends = [before]
    for kind, value in items:
        if kind in (parser.MAX_REPEAT, parser.MIN_REPEAT):
            least, most, body = value
            once = samples(body, text, runs)
            if most > 16:
                runs.append((text, once[len(text) :]))
            text = once if least or most > 16 else text
        elif kind is parser.SUBPATTERN:
            text = samples(value[-1], text, runs)
        elif kind is parser.BRANCH:
            *_, text = (samples(branch, text, runs) for branch in reversed(value[1]))
        elif kind in (parser.ASSERT, parser.ASSERT_NOT):
            samples(value[1], text, runs)
        else:
            text += letters((kind, value))
        ends.append(text)
    # Each part of what matches, behind what comes before it, and alone.
    runs += [(start, text[len(start) :]) for start in ends] + [("", end) for end in ends]
    return text


def attacks(pattern: AnyPattern) -> Sequence[tuple[str, str]]:
    """Beginnings and what is repeated behind them: of each repetition, of each beginning of a match, and blanks."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    runs: list[tuple[str, str]] = []
    samples(parser.parse(source, pattern.flags & ~re.DEBUG), "", runs)
    found = dict.fromkeys((before, again) for before, again in runs if again)
    blanks = dict.fromkeys((before, again) for before, _ in runs for again in (" ", "0", "a"))
    return [*found, *blanks]


def seconds(pattern: AnyPattern, method: str, attack: tuple[str, str], size: int, tries: int = 1) -> float:
    """CPU time to look for a pattern in texts of about this size; the shortest of some tries."""
    before, again = attack
    text = before + again * (size // len(again)) + "\0"
    whole: Any = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    spent: list[float] = []
    for _ in range(tries):
        begun = time.thread_time()
        if method == "search":
            for _found in pattern.finditer(whole):
                pass
        else:
            getattr(pattern, method)(whole)
        spent.append(time.thread_time() - begun)
    return min(spent)


def growth(pattern: AnyPattern, method: str) -> str:
    """Return an input for which the time grows faster than its size; '' if there is none."""
    for attack in attacks(pattern):
        for size in SIZES:
            if seconds(pattern, method, attack, size) < SLOW_S:
                continue
            if size == SIZES[0]:
                return f"{method} of {pattern.pattern!r}: {attack}, {size} characters"
            long, short = (seconds(pattern, method, attack, length, tries=3) for length in (size, size // 4))
            if long > SLOW_S and long > 8 * short:
                return f"{method} of {pattern.pattern!r}: {attack}, {size} characters: {long:.3f} s"
            break
    return ""


def test_every_pattern_is_linear() -> None:
    """No pattern of the package takes quadratic time, for runs and beginnings of all that it can match."""
    found = uses()
    assert len(found) > 100
    slow = [growth(pattern, method) for pattern, methods in found.items() for method in sorted(methods)]
    assert [line for line in slow if line] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\s*(\d+) ranks", "search"), (r"\s*\[?\s*\d*\s*x", "match"), (r"    (.+) \((.+?)(?::(\d+))?\)\s*$", "match"),
        (r"\[[^\]\s]*gloo/\w+\] (.+)", "search"), (r"Group\w+'s", "search"), (r"(a|a)+$", "match"),
        (r"#\d+ (.+) from (.+):(\d+)\s*$", "match"), (r"<pre>(.*?)</pre>", "search"), (rb"(\.(gz|et))+$", "search"),
    ],
)  # fmt: skip
def test_slow_patterns_are_found(pattern: str | bytes, method: str) -> None:
    """The test above finds patterns of each kind that takes quadratic time, or more."""
    assert growth(re.compile(pattern), method)
