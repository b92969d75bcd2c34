"""What an agent asks of a rank, in small files beside its tape: to end itself, or to write a stack.

A rank looks once a second whether it is to end. It does so itself where it can, for then it can tell its launcher why.

Where native code holds the GIL, `faulthandler` writes the stack of one thread when a signal comes. The file for it
exists from when the handler is ready until the tape ends: it shows that this process does not die of the signal. Its
first line says which signal, and to which of the process's descriptors the stacks go.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.files.others import read_part
from otel_torchdist.naming import readable
from otel_torchdist.tape.records import CallSiteName

MAX_BYTES: Final = 16_384
EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: the same may succeed when it is tried again."""
FAILURE: Final = "StallAborted"
"""The name under which the tape of such a rank has failed."""
GIVEN_UP: Final = "BackendGaveUp"
"""The name under which a rank says that its backend has given up waiting for the others, and may end the process."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def abort_path(tape: Path) -> Path:
    """Where the word for the writer of a tape lies."""
    return tape.with_suffix(".abort")


def abort_reason(tape: Path) -> str:
    """Why the writer of a tape should end itself; '' when it should not."""
    with contextlib.suppress(OSError), open(os.open(abort_path(tape), _FLAGS), "rb") as stream:
        return stream.read(MAX_BYTES).decode(errors="replace")
    return ""


_HEAD: Final = re.compile(rb"signal (\d{1,3}) writes a stack to descriptor (\d{1,9})\n")
_TITLE: Final = re.compile(r"^(?:Stack|(?:Current )?[Tt]hread 0x[0-9a-f]+.*) \(most recent call first\):$")
_TITLE_IN_TEXT: Final = re.compile(_TITLE.pattern, re.MULTILINE)
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_TAIL_BYTES: Final = 65_536
_ESCAPED: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


@dataclass(frozen=True, slots=True)
class SignalOffer:
    """What a process says of its handler.

    Attributes:
        signal: The number of the signal.
        descriptor: The descriptor to which the handler writes, of the process that has it.
    """

    signal: int
    descriptor: int

    def encode(self) -> bytes:
        """The file's first line."""
        return b"signal %d writes a stack to descriptor %d\n" % (self.signal, self.descriptor)


def offer_path(tape: Path) -> Path:
    """Where the process that writes `tape` says that it can be signalled, and where its stacks go."""
    return tape.with_suffix(".fault")


def decode_offer(head: bytes) -> SignalOffer | None:
    """The offer at the head of a file; None when there is none."""
    match = _HEAD.match(head)
    return SignalOffer(int(match[1]), int(match[2])) if match else None


def parse_stack(text: str) -> tuple[CallSiteName, ...]:
    """The frames of the first stack in what `faulthandler` has written, innermost first; none when there is none.

    It knows functions by their bare names only, and writes `???` for a line or a file that it does not find.
    """
    frames: list[CallSiteName] = []
    begun = False
    for line in text.splitlines():
        if _TITLE.match(line):
            if begun:
                break
            begun = True
        elif begun and (match := _FRAME.match(line)):
            number = int(match[2]) if match[2].isdecimal() else 0
            frames.append(CallSiteName(readable(_unescape(match[3])), readable(_unescape(match[1])), number))
    return tuple(frames)


def last_stack(path: Path) -> tuple[CallSiteName, ...]:
    """The frames of the last stack in a file of an offer, innermost first; none when there is none.

    While it is being written it may lack its outermost frames.
    """
    try:
        text = read_part(path, -_TAIL_BYTES, _TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ()
    titles = [match.start() for match in _TITLE_IN_TEXT.finditer(text)]
    return parse_stack(text[titles[-1] :]) if titles else ()


def _unescape(text: str) -> str:
    """Letters beyond ASCII, which it writes as Python would in a literal; what is no letter stays as it is."""
    return _ESCAPED.sub(lambda match: _letter(match[0], int(match[1] or match[2] or match[3], 16)), text)


def _letter(escaped: str, code: int) -> str:
    is_letter = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code) if is_letter else escaped
