"""The values that settings accept, and the warnings about all other values."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Generic, TypeVar

from otel_torchdist.config.actions import TARGET
from otel_torchdist.config.sources import SettingSource


class ReaderHome(Enum):
    """The process that reads the tapes."""

    AGENT = "agent"
    """An agent, which reads the tapes of all ranks of a node."""
    THREAD = "thread"
    """The rank itself, on a thread."""
    NONE = "none"
    """None that is started by a rank."""


class CaptureKernel(Enum):
    """The recorder of the calls."""

    AUTO = "auto"
    """The native library if one exists for this torch and Python, otherwise Python."""
    NATIVE = "native"
    """The native library; if none exists, Python and a warning."""
    PYTHON = "python"


class NumericsMode(Enum):
    """The operations whose tensors are checked."""

    OFF = "off"
    SAMPLED = "sampled"
    """Statistics and checksums of a sample."""
    ALL = "all"
    """As `SAMPLED`, and all inputs of all operations are checked for values that are not finite."""


class PageAccess(Enum):
    """The users who may see the live page."""

    OFF = "off"
    LOOPBACK = "loopback"
    """Users of this machine. Each sees only their own jobs."""
    ON = "on"
    """Everyone who reaches the port of `/metrics`."""


TRACE_ID_PLACEHOLDER: Final = "{trace_id}"
_WEB_ADDRESS: Final = re.compile(r"https?://[!-~]+")
_NUMBER: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?|\.[0-9]{1,18}", re.ASCII)
_LONGEST_MILLISECONDS: Final = 2**31 - 1

_logger = logging.getLogger("otel_torchdist")

T = TypeVar("T")


@dataclass(frozen=True)
class Accepted(Generic[T]):
    """The values that a setting accepts.

    Attributes:
        wording: Description for warnings.
        parse: Converts stripped, non-empty text to the value; raises ValueError for other text.
    """

    wording: str
    parse: Callable[[str], T]


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """The environment variable of a setting, its accepted values and its default.

    Attributes:
        variable: The environment variable.
        accepted: The accepted values.
        default: The default, as the variable would hold it.
    """

    variable: str
    accepted: Accepted[T]
    default: str

    def default_value(self) -> T:
        """Return the default as a value."""
        return self.accepted.parse(self.default)

    def level_and_value(self, sources: Sequence[SettingSource]) -> tuple[int, T]:
        """Return the index of the first source with an accepted text, and the value; the default for none.

        A text that is not accepted gives one warning, and counts as missing.
        """
        for level, source in enumerate(sources):
            text = source.text(self.variable)
            if not text:
                continue
            try:
                return level, self.accepted.parse(text)
            except ValueError:
                others = (other.text(self.variable) for other in sources[level + 1 :])
                _logger.warning(
                    "%s is not %s: using %s",
                    source.described(self.variable),
                    self.accepted.wording,
                    next(filter(None, others), self.default) or "none",
                )
        return len(sources), self.default_value()


def one_of(choices: Mapping[str, T]) -> Accepted[T]:
    """Accept one of these words, in upper or lower case."""

    def parse(text: str) -> T:
        if text.lower() not in choices:
            raise ValueError(text)
        return choices[text.lower()]

    *others, last = choices
    return Accepted(f"{', '.join(others)} or {last}", parse)


def integer(least: int, most: int | None = None, unit: str = "") -> Accepted[int]:
    """Accept a whole number within limits."""

    def parse(text: str) -> int:
        # int() alone would also accept signs, underscores and the digits of other scripts.
        if not (text.isascii() and text.isdecimal()):
            raise ValueError(text)
        number = int(text)
        if number < least or (most is not None and number > most):
            raise ValueError(text)
        return number

    limits = f"at least {least}" if most is None else f"from {least} to {most}"
    return Accepted(f"a whole number{unit} {limits}", parse)


def milliseconds(least: int) -> Accepted[float]:
    """Accept a duration in milliseconds with a minimum; the value is in seconds."""
    whole = integer(least, _LONGEST_MILLISECONDS, unit=" of milliseconds")
    return Accepted(whole.wording, lambda text: whole.parse(text) / 1000)


def number_up_to(largest: int) -> Accepted[float]:
    """Accept a number from 0 to `largest`."""

    def parse(text: str) -> float:
        # float() alone would also accept signs, underscores, exponents and the digits of other scripts.
        if not _NUMBER.fullmatch(text) or float(text) > largest:
            raise ValueError(text)
        return float(text)

    return Accepted(f"a number from 0 to {largest}", parse)


def absolute_path() -> Accepted[Path]:
    """Accept an absolute path."""

    def parse(text: str) -> Path:
        # Ranks and agent may run in different directories and must find the same one.
        if not os.path.isabs(text):
            raise ValueError(text)
        return Path(text)

    return Accepted("an absolute path", parse)


def optional(accepted: Accepted[T]) -> Accepted[T | None]:
    """Also accept the empty text, as None."""
    return Accepted(accepted.wording, lambda text: accepted.parse(text) if text else None)


def list_of_names() -> Accepted[frozenset[str]]:
    """Accept names, in any order."""

    def parse(text: str) -> frozenset[str]:
        return frozenset(name.strip() for name in text.split(",")) - {""}

    return Accepted("a comma-separated list", parse)


def list_of_patterns() -> Accepted[tuple[str, ...]]:
    """Accept patterns, and keep their order."""

    def parse(text: str) -> tuple[str, ...]:
        return tuple(pattern for part in text.split(",") if (pattern := part.strip()))

    return Accepted("a comma-separated list", parse)


def list_of_signals() -> Accepted[frozenset[signal.Signals]]:
    """Accept names of signals."""

    def parse(text: str) -> frozenset[signal.Signals]:
        return frozenset(_signal(name) for name in list_of_patterns().parse(text))

    return Accepted("a comma-separated list of signals such as SIGTERM", parse)


def _signal(name: str) -> signal.Signals:
    signals = {name.name: name for name in signal.Signals}
    if name not in signals:
        raise ValueError(name)
    return signals[name]


def list_of_targets() -> Accepted[tuple[str, ...]]:
    """Accept functions, as `module:name`."""

    def parse(text: str) -> tuple[str, ...]:
        targets = list_of_patterns().parse(text)
        if not all(map(TARGET.fullmatch, targets)):
            raise ValueError(text)
        return targets

    return Accepted("a comma-separated list of module:name", parse)


_RANKS: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
ALL_RANKS: Final = "all"


def list_of_ranks() -> Accepted[tuple[range, ...]]:
    """Accept ranks and ranges of ranks; an empty tuple stands for all ranks."""

    def parse(text: str) -> tuple[range, ...]:
        if text.lower() == ALL_RANKS:
            return ()
        ranges: list[range] = []
        for part in text.split(","):
            match = _RANKS.fullmatch(part.strip())
            if match is None or int(match[2] or match[1]) < int(match[1]):
                raise ValueError(text)
            ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1))
        return tuple(ranges)

    return Accepted("all, or a list of ranks such as 0,8-15", parse)


def trace_url_template() -> Accepted[str]:
    """Accept a web address with a placeholder for the trace id; '' for none."""

    def parse(text: str) -> str:
        # The address becomes a link on a page, so `javascript:` and other schemes must be refused.
        if text and (not _WEB_ADDRESS.fullmatch(text) or TRACE_ID_PLACEHOLDER not in text):
            raise ValueError(text)
        return text

    return Accepted(f"an http or https address with {TRACE_ID_PLACEHOLDER} in it", parse)


def web_address() -> Accepted[str]:
    """Accept a web address, and remove slashes at its end; '' for none."""

    def parse(text: str) -> str:
        # The address becomes a link on a page, so `javascript:` and other schemes must be refused.
        if text and not _WEB_ADDRESS.fullmatch(text):
            raise ValueError(text)
        return text.rstrip("/")

    return Accepted("an http or https address", parse)
