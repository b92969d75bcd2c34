"""Strings from tapes as text that can be shown: in a log, at a terminal, as a label, in a span.

A rank may call its groups, functions and files anything, and another user's rank may forge a line of the log, steer
the terminal, or turn the direction of text. This is the one place where that ends.
"""

from __future__ import annotations

from typing import Final

MAX_SHOWN: Final = 4096
"""Of one string; the longest path that Linux allows."""


def readable(text: str, most: int = MAX_SHOWN) -> str:
    r"""The text, with everything that does not print written as in a Python literal, such as `\x1b` or `\u202e`.

    Half a surrogate pair, as in the path of a file whose name is not UTF-8, cannot be encoded and is written so too.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
