"""Shortens an answer to the size that an assistant can take in, and says what was left out."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from otel_torchdist.errors import RunError
from otel_torchdist.model.text import plain_rank

MAX_CHARACTERS: Final = 30_000
"""Upper bound on the characters of an answer's JSON, about 10,000 tokens."""
_STEPS: Final = ((64, 2_000), (32, 2_000), (16, 1_000), (8, 1_000), (4, 500), (2, 200), (1, 100))
"""Bounds to try in turn: items of a list or map of objects, and characters of a text."""
_PLAIN_FACTOR: Final = 8
"""A list of numbers or texts may have this many times the items of a list of objects."""
_MAX_NOTES: Final = 32
_LEFT_OUT: Final = "left_out"


def bounded(answer: msgspec.Struct, hint: str) -> dict[str, Any]:
    """Return an answer as plain values, shortened until its JSON has at most `MAX_CHARACTERS` characters.

    All lists are shortened to the same number of items. Their first items are kept.

    Args:
        answer: A struct with a field `left_out`, a list of sentences.
        hint: How to ask for a part; appended to what was left out.

    Raises:
        RunError: The answer is too long even with one item in each list.
    """
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer, enc_hook=plain_rank))
    if _length(whole) <= MAX_CHARACTERS:
        return whole
    for items, characters in _STEPS:
        shortening = _Shortening(items, characters)
        short = {key: shortening.of(value, key) for key, value in whole.items()}
        short[_LEFT_OUT] = [*whole[_LEFT_OUT], *shortening.notes(), hint]
        if _length(short) <= MAX_CHARACTERS:
            return short
    raise RunError(f"the answer is longer than {MAX_CHARACTERS:,} characters; {hint}")


def _length(document: object) -> int:
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


class _Shortening:
    """One attempt with given bounds. Collects what it leaves out, by the path of the field."""

    def __init__(self, items: int, characters: int) -> None:
        self._items = items
        self._characters = characters
        self._cut: dict[str, tuple[int, int]] = {}

    def of(self, value: Any, path: str) -> Any:
        """Return a value, shortened."""
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, list):
            kept = self._kept(value, path)  # pyright: ignore[reportUnknownArgumentType]
            return [self.of(item, f"{path}[]") for item in kept]
        if isinstance(value, dict):
            return self._map(value, path)  # pyright: ignore[reportUnknownArgumentType]
        return value

    def notes(self) -> list[str]:
        """Return a sentence for each shortened field."""
        notes = [f"{path}: the first {kept} of {count} are shown" for path, (kept, count) in self._cut.items()]
        more = len(notes) - _MAX_NOTES
        return [*notes[:_MAX_NOTES], f"and {more} more fields are shortened"] if more > 0 else notes

    def _map(self, value: dict[str, Any], path: str) -> dict[str, Any]:
        # Only a map from ranks has numbers as keys; the keys of a struct are all needed.
        entries = list(value.items())
        if entries and all(key.lstrip("-").isdigit() for key in value):
            entries = self._kept(entries, path, self._items * _PLAIN_FACTOR)
        return {key: self.of(item, f"{path}.{key}" if not key.isdigit() else path) for key, item in entries}

    def _text(self, text: str, path: str) -> str:
        if len(text) <= self._characters:
            return text
        self._note(path, self._characters, len(text))
        return text[: self._characters] + "…"

    def _kept(self, items: list[Any], path: str, most: int = 0) -> list[Any]:
        is_plain = not any(isinstance(item, (dict, list)) for item in items)
        most = most or (self._items * _PLAIN_FACTOR if is_plain else self._items)
        if len(items) > most:
            self._note(path, most, len(items))
        return items[:most]

    def _note(self, path: str, kept: int, count: int) -> None:
        _, before = self._cut.get(path, (0, 0))
        self._cut[path] = kept, max(before, count)
