"""The tape's binary format: the position of each byte, and the meaning of each word.

A tape is one file, mapped by its writer and read by any number of readers:

    0      identity   1,024 bytes, written once, with its own CRC
    1,024  live words 3,072 bytes, 64-bit words that the writer updates in place; from 1,280 on `tape.figures`
    4,096  refuge     64 records: open operations and activities whose slots in the ring have been reused
    12,288 ring       `capacity` records of 128 bytes; record n is in slot n % capacity, numbers start at 1

A record has three parts:

    0   number   64-bit word; 0 while the record is being written (the sequence lock)
    8   CRC      CRC of number and payload, in a 64-bit word
    16  payload  64 bytes, written once, at the entry of the operation or activity
    80  words    six 64-bit words, each 0 until known (see `tape.seals`)

All words are native 64-bit stores: with an explicit byte order, `struct` writes byte by byte, and a reader in another
process could see half a word. So the byte order is native, and part of the magic number.

All data behind verdicts and times can be verified: the identity and each payload by a CRC, every other word by a
checksum inside it. Four kinds of words are unprotected: counters, the request for stacks, its answer, and the answer
to a profile request. Damage there causes a wrong count in a metric, or one unrequested write of stacks.
"""

from __future__ import annotations

import enum
import math
import struct
from typing import TYPE_CHECKING, Final

from otel_torchdist.formats import TAPE
from otel_torchdist.model.kinds import ActivityKind, Blame, RecordKind

if TYPE_CHECKING:
    from otel_torchdist.model.remote_calls import RemoteCall

MAGIC: Final = int.from_bytes(b"OTDTAPE\x01", "little")
VERSION: Final = TAPE.number
IDENTITY_SIZE: Final = 1024
REFUGE_OFFSET: Final = 4096
REFUGE_SLOTS: Final = 64
RECORD_SIZE: Final = 128
RING_OFFSET: Final = REFUGE_OFFSET + REFUGE_SLOTS * RECORD_SIZE
PAYLOAD_OFFSET: Final = 16
PAYLOAD_HEAD: Final = struct.Struct("=QqQ")
"""entered_ns, step, sequence: the fields that differ between calls of a call site."""
PAYLOAD_TAIL: Final = struct.Struct("=QIIIIiiIBBBB")
"""message_bytes, group, signature, call_site, label, peer, tag, thread, kind, flags, phase, caller: packed once per
call site and thread. Only the label, if set by a library for parallel training, is filled in per call; see
`pack_label`."""
LABEL: Final = struct.Struct("=I")
LABEL_OFFSET: Final = struct.calcsize("=QIII")
"""Offset of the label in the tail."""
PAYLOAD: Final = struct.Struct(PAYLOAD_HEAD.format + PAYLOAD_TAIL.format[1:])
SPLITS_BYTES: Final = 32
"""Bytes for parts in one record of kind `SPLITS`."""
SPLITS: Final = struct.Struct(f"=QQIIHH{SPLITS_BYTES}sBBH")
"""received_bytes, entered_ns, unit, thread, members, first, parts, kind, width, form: the payload of a `SPLITS` record.
The kind is at the same offset in every payload. `entered_ns` is not, so that `find_record_entered_at` matches only
operations."""
WORDS_OFFSET: Final = PAYLOAD_OFFSET + PAYLOAD.size
WORDS: Final = 6
EMPTY_WORDS: Final = bytes(8 * WORDS)
WORD_BITS_DURATION: Final = 48
MAX_DURATION_NS: Final = (1 << WORD_BITS_DURATION) - 1
CHECK_MODULUS: Final = 4093
"""The largest prime below 2^12. The capacity of a ring must not be a multiple of it: see `ring_capacity`."""
CRC_MODULUS: Final = 4294967291
"""The largest prime below 2^32: record numbers that differ in one bit never have the same remainder."""
MIN_CAPACITY: Final = 8
MAX_CAPACITY: Final = 1 << 21
MAX_TIME_NS: Final = (1 << 62) - 1
"""Upper bound on times, 146 years. The sum of two such times still fits OTLP's 64-bit times."""
MAX_COUNT: Final = (1 << 31) - 1
"""Upper bound of process ids."""
NO_CALLER: Final = 0
MAIN_CALLER: Final = 1
"""The main thread."""
MAX_CALLERS: Final = 255
MAX_RANKS: Final = 1 << 20
"""Upper bound of ranks and world sizes: readers list the missing ranks of a job."""
LIVE_VALUE_MASK: Final = (1 << 52) - 1
ASKED_TIME_BITS: Final = 45
"""Width of the time in `ASKED`: microseconds, which wrap after 407 days. The bits above are the signal's number."""


class LiveWord(enum.IntEnum):
    """Index of each live word, counted in 64-bit words from the start of the file.

    Words in `SEALED_LIVE_WORDS` contain a checksum. The clock pair is a single word, the difference between wall clock
    and monotonic clock: from two words a reader could combine values a second apart.
    """

    RUN_ID_HIGH = 128
    RUN_ID_LOW = 129
    RUN_ID_STATE = 130
    NEXT_NUMBER = 131
    STEP = 132
    HEARTBEAT_US = 133
    CLOCK_OFFSET_US = 134
    RECORDS_DROPPED = 135
    OVERHEAD_NS = 136
    OVERHEAD_CALLS = 137
    STATE = 138
    FAILURE = 139
    REQUEST = 140
    ANSWER = 141
    NAMES_DROPPED = 142
    EXPECTED_UNTIL_US = 143
    EXPORTED_BY_RANK = 144
    PROFILE_REQUEST = 145
    PROFILE_ANSWER = 146
    RESCUE = 147
    ASKED = 148
    RPC_WORKER = 149
    """Name id of this process's name as an RPC worker; 0 if it is not a worker."""
    RPC_THREADS = 150
    """Number of threads that serve calls of other workers."""
    SWITCHED_OFF_US = 151
    """Time in microseconds at which recording was switched off; 0 if it was not."""
    RECORDING_LEVEL = 152
    """How much less than everything is recorded; see `RecordingLevel`."""
    BACKWARD_THREAD = 156
    """Native id of the thread that began the last backward pass."""
    BACKWARD_US = 157
    """Start of that backward pass in microseconds; 0 once it has ended."""
    FUTURE_THREAD = 158
    """Native id of the thread that began the last wait for a future."""
    FUTURE_US = 159
    """Start of that wait in microseconds; 0 once it has ended."""


SEALED_LIVE_WORDS: Final = (
    LiveWord.STEP,
    LiveWord.HEARTBEAT_US,
    LiveWord.CLOCK_OFFSET_US,
    LiveWord.FAILURE,
    LiveWord.EXPECTED_UNTIL_US,
    LiveWord.EXPORTED_BY_RANK,
    LiveWord.PROFILE_REQUEST,
    LiveWord.RESCUE,
    LiveWord.ASKED,
    LiveWord.RPC_WORKER,
    LiveWord.RPC_THREADS,
    LiveWord.SWITCHED_OFF_US,
    LiveWord.RECORDING_LEVEL,
    LiveWord.BACKWARD_THREAD,
    LiveWord.BACKWARD_US,
    LiveWord.FUTURE_THREAD,
    LiveWord.FUTURE_US,
)
MAX_PROFILE_S: Final = 60.0
MAX_PROFILE_RATE: Final = 200


class Word(enum.IntEnum):
    """The six words after a record's payload: times relative to `entered_ns`, and a failure; see `pack_failure`."""

    RETURNED = 0
    WAIT_ENTERED = 1
    WAIT_RETURNED = 2
    STARTED = 3
    COMPLETED = 4
    FAILURE = 5


class ActivityWord(enum.IntEnum):
    """The first four words of an activity, stored before its end."""

    BYTES = 0
    """Bytes written or read."""
    FILES = 1
    STORAGE = 2
    """Name id of the storage written to or read from."""
    EXPLANATION = 3
    """Name id of the message of the exception that ended the activity."""


_FLOAT: Final = struct.Struct("=f")
_BITS: Final = struct.Struct("=I")
_LARGEST_FLOAT: Final = 3.4028234663852886e38


_FAILURE_BITS: Final = 24
_FAILURE_MASK: Final = (1 << _FAILURE_BITS) - 1
BLAME_SHIFT: Final = _FAILURE_BITS
_BLAMES: Final = {int(blame): blame for blame in Blame}


def pack_failure(identity: int, blame: Blame) -> int:
    """Pack a failure into 32 bits: the name id of the exception's type, and the blame parsed from its message."""
    return identity & _FAILURE_MASK | blame << _FAILURE_BITS


def unpack_failure(word: int) -> tuple[int, Blame]:
    """Return the name id and blame of a failure's word."""
    return word & _FAILURE_MASK, _BLAMES.get(word >> _FAILURE_BITS, Blame.UNKNOWN)


def tape_size(capacity: int) -> int:
    """Return the size in bytes of a tape whose ring holds `capacity` records."""
    return RING_OFFSET + capacity * RECORD_SIZE


def ring_capacity(records: int) -> int:
    """Return the capacity of a ring for `records` records: a multiple of `CHECK_MODULUS` is increased by 1.

    With such a multiple, a word stored one lap late would pass the check of the record that now owns the slot.
    """
    return records if records % CHECK_MODULUS else records + 1


def is_ring_capacity(capacity: int) -> bool:
    """Return whether a ring may have this capacity."""
    return MIN_CAPACITY <= capacity <= MAX_CAPACITY and capacity == ring_capacity(capacity)


def float_bits(value: float) -> int:
    """Return the bits of a number as float32. Finite numbers are clipped to the range of float32."""
    clipped = max(-_LARGEST_FLOAT, min(value, _LARGEST_FLOAT)) if math.isfinite(value) else value
    return _BITS.unpack(_FLOAT.pack(clipped))[0]


def float_of(bits: int) -> float:
    """Return the number with these bits as float32."""
    return _FLOAT.unpack(_BITS.pack(bits))[0]


# Times, positions and sizes have 64 unsigned bits on a tape. OTLP, archives and MessagePack have 63, and an exporter
# logs an error for each larger number. A damaged record fails its CRC. So a larger number is forged, or is the size of
# a tensor that takes no memory (`expand`, device `meta`). Decoders of records check their numbers with these functions.

MAX_NUMBER: Final = MAX_TIME_NS
"""Upper bound of times in nanoseconds, positions and sizes. The sum of two fits 63 bits."""
_NUMBER_BITS: Final = MAX_NUMBER.bit_length()


def check_position(number: int, time_ns: int, step: int, sequence: int) -> None:
    """Check the time and the position of a record.

    Raises:
        ValueError: A number is negative or larger than `MAX_NUMBER`.
    """
    if (time_ns | step | sequence) >> _NUMBER_BITS:  # also true for negative numbers, whose upper bits are all set
        raise ValueError(f"record {number} is at an impossible time or position")


def clipped(size: int) -> int:
    """Clip a size or a count to `MAX_NUMBER`. Its record is kept, as evidence of a stall."""
    return min(size, MAX_NUMBER)


def prepare_activity(kind: ActivityKind, detail: int, thread: int, message_bytes: int = 0) -> bytes:
    """Pack an activity for `TapeWriter.begin_prepared`. Its sequence is its parent's number.

    The arguments are as in `Activity`.
    """
    return PAYLOAD_TAIL.pack(message_bytes, 0, kind, 0, detail, -1, 0, thread, RecordKind.ACTIVITY, 0, 0, 0)


def prepare_call(kind: ActivityKind, function: int, thread: int, call: RemoteCall) -> bytes:
    """Pack one side of a remote call for `TapeWriter.begin_prepared`. Its sequence is `caller_number`.

    Args:
        kind: The side: caller or callee.
        function: Name id of the function.
        thread: Native id of the thread.
        call: The other fields.

    Raises:
        struct.error: A value does not fit its field.
    """
    return PAYLOAD_TAIL.pack(
        call.caller_nonce,
        call.worker_name,
        kind,
        call.call_site,
        function,
        call.worker,
        min(call.caller_step, MAX_COUNT),
        thread,
        RecordKind.ACTIVITY,
        call.mode,
        0,
        0,
    )
