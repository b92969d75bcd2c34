"""The files with the stacks of one process's threads, written beside its tape when a reader asks for them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.text import readable
from otel_torchdist.system.files.others import read_part
from otel_torchdist.system.files.owned import replace_at_once
from otel_torchdist.tape.names.writer import site_document


def stacks_path(tape: Path) -> Path:
    """Return the path of the stacks of the process that writes `tape`."""
    return tape.with_suffix(".stacks")


def write_stacks(tape: Path, request: int, stacks: list[ThreadStack]) -> None:
    """Replace the stacks beside a tape atomically, so that readers see either the old or the new stacks.

    Raises:
        OSError: The file cannot be written.
    """
    # Encoded with `json.dumps`: `json.dump` takes ten times as long, and holds the GIL.
    body = json.dumps({"request": request, "threads": [_document(stack) for stack in stacks]})
    replace_at_once(stacks_path(tape), tape.with_suffix(".stacks.new"), body.encode())


def _document(stack: ThreadStack) -> dict[str, object]:
    frames = [site_document(frame) for frame in stack.frames]
    return {"thread": stack.thread, "name": stack.name, "frames": frames, "is_locked": stack.is_locked}


# --- the fault handler ------------------------------------------------------------------------------------------------
# While native code holds the GIL, `faulthandler` can still write a rank's stack when a signal arrives.
# The file for it exists from the installation of the handler to the end of the tape. It proves that the signal does not
# kill the process. Its first line names the signal, and the process's descriptor of the file.


# Not compiled at import: a rank only writes offers and does not need the patterns.
_HEAD: Final = rb"signal (\d{1,3}) writes a stack to descriptor (\d{1,9})\n"
_TITLE: Final = r"^(?:Stack|(?:Current )?[Tt]hread 0x[0-9a-f].*) \(most recent call first\):$"
_FRAME: Final = r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$'
_TAIL_BYTES: Final = 65_536
_ESCAPED: Final = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"


class SignalOffer(NamedTuple):
    """A process's description of its handler.

    Attributes:
        signal: Number of the signal.
        descriptor: Descriptor in that process to which the handler writes.
    """

    signal: int
    descriptor: int

    def encode(self) -> bytes:
        """Encode the file's first line."""
        return b"signal %d writes a stack to descriptor %d\n" % (self.signal, self.descriptor)


def offer_path(tape: Path) -> Path:
    """Return the path of the file in which the writer of `tape` offers a signal, and writes its stacks."""
    return tape.with_suffix(".fault")


def decode_offer(head: bytes) -> SignalOffer | None:
    """Decode the offer at the head of a file; None if there is none."""
    match = re.match(_HEAD, head)
    return SignalOffer(int(match[1]), int(match[2])) if match else None


def parse_stack(text: str) -> tuple[CallSiteName, ...]:
    """Return the frames of the first stack in `faulthandler`'s output, innermost first; empty if there is none.

    `faulthandler` writes only the bare names of functions, and `???` for a line or a file that it does not find.
    """
    frames: list[CallSiteName] = []
    has_begun = False
    for line in text.splitlines():
        if re.match(_TITLE, line):
            if has_begun:
                break
            has_begun = True
        elif has_begun and (match := re.match(_FRAME, line)):
            number = int(match[2]) if match[2].isdecimal() else 0
            frames.append(CallSiteName(readable(_unescape(match[3])), readable(_unescape(match[1])), number))
    return tuple(frames)


def last_stack(path: Path, owner: int | None = None) -> tuple[CallSiteName, ...]:
    """Return the frames of the last stack in an offer's file, innermost first; empty if there is none.

    A stack that is still being written may lack its outermost frames.

    Args:
        path: The file.
        owner: The user who must own the file; None for any.
    """
    try:
        text = read_part(path, -_TAIL_BYTES, _TAIL_BYTES, owner).decode(errors="replace")
    except OSError:
        return ()
    titles = [match.start() for match in re.finditer(_TITLE, text, re.MULTILINE)]
    return parse_stack(text[titles[-1] :]) if titles else ()


def _unescape(text: str) -> str:
    """Decode non-ASCII letters, which are escaped as in a Python literal; keep invalid code points escaped."""
    return re.sub(_ESCAPED, lambda match: _letter(match[0], int(match[1] or match[2] or match[3], 16)), text)


def _letter(escaped: str, code: int) -> str:
    is_letter = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code) if is_letter else escaped
