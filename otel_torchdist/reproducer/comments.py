"""Text of a tape as Python source that cannot be anything but a comment or a string.

Another user's rank may give its groups, functions and files any name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from otel_torchdist.naming import readable

WIDTH: Final = 100
LONGEST: Final = 2_000
"""Characters of one text that are shown."""


def plain(text: str) -> str:
    r"""The text in ASCII on one line: what is not printable, or not ASCII, is escaped, such as `\n` or `\u202e`."""
    return readable(text.replace("…", "..."), LONGEST).encode("ascii", "backslashreplace").decode()


def comment(text: str, indent: str = "", hanging: str = "") -> Iterator[str]:
    """Lines of comment, wrapped; the second and following ones begin with `hanging`.

    Python reads an encoding from a comment in the first two lines of a file: these must be fixed text.
    """
    for line in textwrap.wrap(plain(text), WIDTH - 2 - len(indent), subsequent_indent=hanging) or [""]:
        yield f"{indent}# {line}".rstrip()


def literal(text: str) -> str:
    """A Python string, on one line."""
    written = ascii(text[:LONGEST])
    return f'"{written[1:-1]}"' if not {*written[1:-1]} & {*"\"'\\"} else written
