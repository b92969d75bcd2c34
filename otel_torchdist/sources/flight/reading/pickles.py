"""Unpickles untrusted plain data: only dicts, lists, tuples, strings and numbers.

A pickle can call any function. It can also exhaust memory (a memo index makes `pickle` allocate as many entries) or
the C stack (the hash of a deeply nested key is computed recursively). So all opcodes are checked first: only those
that a flight recorder or `pickle.dumps` uses for plain data are allowed.
"""

from __future__ import annotations

import io
import pickle
import re
import threading
from typing import Any, Final, NoReturn

from otel_torchdist.errors import TorchDistError

MAX_OBJECTS: Final = 8_000_000
"""Upper bound on containers. An empty container takes 1 byte of the file and 60 bytes of memory."""
MAX_TUPLES: Final = 1_000_000
SAFE_DEPTH: Final = 10_000
"""Number of nested tuples that fit on the default stack. Each takes less than `FRAME_BYTES`."""
FRAME_BYTES: Final = 512
_STACK_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 128 << 10
_PROTOCOLS: Final = b"\x80[\x02-\x05]"


class PickleError(TorchDistError):
    """A pickle is damaged, or holds something other than plain data; the message gives the reason."""


def _texts(opcode: bytes, size: bytes) -> bytes:
    """Return a pattern for short strings. A regular expression cannot read a length, so each has its alternative."""
    return opcode + b"(?:" + b"|".join(re.escape(bytes([n])) + size + b".{%d}" % n for n in range(128)) + b")"


_SHORT_OPCODES: Final = (
    rb"[hqK].|[]})(aesut.0N\x85-\x89\x94]+"  # references; containers, marks, None, booleans, MEMOIZE, STOP
    rb"|M..|J.{4}|G.{8}|j..[\x00-\x0f]\x00"  # numbers, references
    rb"|r..[\x00-\x03]\x00"  # an entry of the memo, below 2^18
    rb"|\x8a[\x00-\x09](?:(?<=\x00)|(?<=\x01).|(?<=\x02)..|(?<=\x03).{3}|(?<=\x04).{4}|(?<=\x05).{5}|(?<=\x06).{6}"
    rb"|(?<=\x07).{7}|(?<=\x08).{8}|(?<=\x09).{9})"  # longer numbers
    rb"|\x95.{8}"  # FRAME: ignored, since the length of everything inside is checked
)
_TOKENS: Final = re.compile(
    b"(?:" + _SHORT_OPCODES + b"|" + _texts(b"X", rb"\x00\x00\x00") + b"|" + _texts(b"\x8c", b"") + b"){1,4096}",
    re.DOTALL,
)
_TUPLES: Final = b"t\x85\x86\x87"
_EMPTY_CONTAINERS: Final = b"]})"


def load(content: bytes) -> Any:
    """Unpickle plain data.

    Raises:
        PickleError: It is not a pickle, is damaged, or holds anything but plain data.
    """
    check(content)
    tuples = _count_at_most(content, _TUPLES)
    if tuples <= SAFE_DEPTH:
        return _load(content)
    if tuples > MAX_TUPLES:
        raise PickleError("it holds too many tuples")
    return _load_with_stack(content, _STACK_BYTES + tuples * FRAME_BYTES)


def check(content: bytes) -> None:
    """Check every opcode up to the end.

    Raises:
        PickleError: An opcode is not allowed for plain data, or the pickle is damaged.
    """
    if not re.match(_PROTOCOLS, content):
        raise PickleError("it is not a pickle of protocol 2 to 5")
    if _count_at_most(content, _EMPTY_CONTAINERS) > MAX_OBJECTS:
        raise PickleError("it holds too many objects")
    if not content.endswith(b"."):
        raise PickleError("it is truncated, or not a pickle")
    position, end = 2, len(content)
    while position < end:
        match = _TOKENS.match(content, position)
        position = match.end() if match is not None else _end_of_opcode(content, position)


def _count_at_most(content: bytes, opcodes: bytes) -> int:
    """Return an upper bound on the number of these opcodes. Their bytes also occur in strings and numbers."""
    return len(content) - len(content.translate(None, opcodes))


def _end_of_opcode(content: bytes, position: int) -> int:
    """Return the end of an opcode whose length or memo index a regular expression cannot check."""
    opcode, argument = content[position : position + 1], content[position + 1 : position + 9]
    if opcode == b"X" and len(argument) >= 4:
        after = position + 5 + int.from_bytes(argument[:4], "little")
    elif opcode == b"\x8c" and argument:
        after = position + 2 + argument[0]
    elif opcode in (b"r", b"j") and len(argument) >= 4:
        after = position + 5
        if int.from_bytes(argument[:4], "little") > position:  # each memo entry takes at least one byte
            raise PickleError("it refers to an object that it does not hold")
    elif opcode in _KNOWN_OPCODES:
        raise PickleError("it is truncated")
    else:
        raise PickleError(f"it holds something other than plain data (opcode {opcode!r} at byte {position})")
    if after > len(content):
        raise PickleError("it is truncated")
    return after


_KNOWN_OPCODES: Final = frozenset(bytes([code]) for code in b"hqKMJGjrX\x8a\x8c\x95")


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that refuses all classes: a second line of defense behind the check of opcodes."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse."""
        raise PickleError(f"it refers to {module_name}.{global_name}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        """Refuse."""
        raise PickleError("it refers to an object outside of it")


def _load(content: bytes) -> Any:
    try:
        # From a buffered reader the unpickler peeks large pieces; from a plain one it reads a few bytes at a time.
        return _PlainUnpickler(io.BufferedReader(io.BytesIO(content), _PIECE_BYTES)).load()
    except PickleError:
        raise
    except Exception as error:  # an unpickler may raise any exception for a damaged pickle
        raise PickleError(f"it is damaged ({type(error).__name__})") from error


def _load_with_stack(content: bytes, stack_bytes: int) -> Any:
    """Unpickle on a thread with a stack large enough for nested tuples."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(_load(content))
        except PickleError as error:
            outcome.append(error)

    before = threading.stack_size(stack_bytes)
    try:
        thread = threading.Thread(target=run, name="torchdist-unpickle")
        thread.start()
    except RuntimeError as error:
        raise PickleError("it holds more tuples than there is memory for") from error
    finally:
        threading.stack_size(before)
    thread.join()
    (result,) = outcome
    if isinstance(result, PickleError):
        raise result
    return result
