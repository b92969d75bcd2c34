"""The tape's binary format: the position of each byte, and what each word means.

A tape is one file, mapped by its writer and read by any number of readers:

    0      identity   1,024 bytes, written once, with a CRC of its own
    1,024  live words 3,072 bytes, 64-bit words that the writer updates in place, and from 1,280 on `tape.figures`
    4,096  refuge     64 records: open operations and activities whose slot in the ring has been reused
    12,288 ring       `capacity` records of 128 bytes; record n is in slot n % capacity, numbers start at 1

A record has three parts:

    0   number   64-bit word; 0 while the record is being written (the sequence lock)
    8   CRC      of number and payload, in a 64-bit word
    16  payload  64 bytes, written once, when the operation or activity is entered
    80  words    six 64-bit words, each 0 until it is known (see `tape.seals`)

All words are native 64-bit stores: `struct` with an explicit byte order writes byte by byte, and a reader in
another process could see a word half written. The byte order is therefore native, and part of the magic number.

Everything that verdicts and times depend on can be verified: the identity and each payload by a CRC, every other
word by a checksum inside it. Only the counters, the two words of the stack request and the answer to a profile's are
unprotected: damage there means a wrong count in a metric, or stacks written once too often.
"""

from __future__ import annotations

import enum
import math
import struct
from typing import TYPE_CHECKING, Final

from otel_torchdist.model.kinds import ActivityKind, Blame, RecordKind

if TYPE_CHECKING:
    from otel_torchdist.model.remote_calls import RemoteCall

MAGIC: Final = int.from_bytes(b"OTDTAPE\x01", "little")
VERSION: Final = 7
IDENTITY_SIZE: Final = 1024
REFUGE_OFFSET: Final = 4096
REFUGE_SLOTS: Final = 64
RECORD_SIZE: Final = 128
RING_OFFSET: Final = REFUGE_OFFSET + REFUGE_SLOTS * RECORD_SIZE
PAYLOAD_OFFSET: Final = 16
PAYLOAD_HEAD: Final = struct.Struct("=QqQ")
"""entered_ns, step, sequence: the fields that differ from call to call."""
PAYLOAD_TAIL: Final = struct.Struct("=QIIIIiiIBBBB")
"""message_bytes, group, signature, call_site, label, peer, tag, thread, kind, flags, phase, caller: packed per call
site and thread. The label is a word of its own, see `pack_label`; where a library for parallel training has set one, it
is put in for each call."""
LABEL: Final = struct.Struct("=I")
LABEL_OFFSET: Final = struct.calcsize("=QIII")
"""Where in the tail the label is."""
PAYLOAD: Final = struct.Struct(PAYLOAD_HEAD.format + PAYLOAD_TAIL.format[1:])
SPLITS_BYTES: Final = 32
"""Room for parts in one record of kind `SPLITS`."""
SPLITS: Final = struct.Struct(f"=QQIIHH{SPLITS_BYTES}sBBH")
"""received_bytes, entered_ns, unit, thread, members, first, parts, kind, width, form: the payload of such a record.
The kind is where every payload has it; the time of entry is not, because `begun_at` finds operations by it."""
WORDS_OFFSET: Final = PAYLOAD_OFFSET + PAYLOAD.size
WORDS: Final = 6
EMPTY_WORDS: Final = bytes(8 * WORDS)
WORD_BITS_DURATION: Final = 48
MAX_DURATION_NS: Final = (1 << WORD_BITS_DURATION) - 1
CHECK_MODULUS: Final = 4093
"""The largest prime below 2^12. A ring must not hold a multiple of it: see `ring_capacity`."""
CRC_MODULUS: Final = 4294967291
"""The largest prime below 2^32: two record numbers that differ in one bit never share a remainder."""
MIN_CAPACITY: Final = 8
MAX_CAPACITY: Final = 1 << 21
MAX_TIME_NS: Final = (1 << 62) - 1
"""146 years. The sum of two still fits OTLP's 64-bit times."""
MAX_COUNT: Final = (1 << 31) - 1
"""Upper bound of process ids."""
NO_CALLER: Final = 0
MAIN_CALLER: Final = 1
"""The main thread."""
MAX_CALLERS: Final = 255
MAX_RANKS: Final = 1 << 20
"""Upper bound of ranks and world sizes: readers list the ranks of a job that are not there."""
LIVE_VALUE_MASK: Final = (1 << 52) - 1
ASKED_TIME_BITS: Final = 45
"""Of a request to end: microseconds, which wrap after 407 days. The signal's number is above them."""


class LiveWord(enum.IntEnum):
    """Index of each live word, counted in 64-bit words from the start of the file.

    Words in `SEALED_LIVE_WORDS` carry a checksum. The clock is a single word, the wall clock's lead over the
    monotonic one: of two words a reader could combine a new one with an old one, a second apart.
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
    """Name id of this process's name as a worker of RPC; 0 if it is none."""
    RPC_THREADS = 150
    """How many threads serve the calls of other workers."""
    BACKWARD_THREAD = 156
    """Native id of the thread that has begun a backward pass last."""
    BACKWARD_US = 157
    """When it has; 0 while it is in none."""
    FUTURE_THREAD = 158
    """Native id of the thread that has begun to wait for a future last."""
    FUTURE_US = 159
    """When it has; 0 while it waits for none."""


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
    """The first four words of an activity, which hold numbers that are known before its end."""

    BYTES = 0
    """Bytes that it has written or read."""
    FILES = 1
    STORAGE = 2
    """Name id of the storage that it writes to or reads from."""
    EXPLANATION = 3
    """Name id of the message of the exception that ended it."""


_FLOAT: Final = struct.Struct("=f")
_BITS: Final = struct.Struct("=I")
_LARGEST_FLOAT: Final = 3.4028234663852886e38


_FAILURE_BITS: Final = 24
_FAILURE_MASK: Final = (1 << _FAILURE_BITS) - 1
BLAME_SHIFT: Final = _FAILURE_BITS
_BLAMES: Final = {int(blame): blame for blame in Blame}


def pack_failure(identity: int, blame: Blame) -> int:
    """Return a failure's word: the name id of the exception's type, and what its message blames. Fits in 32 bits."""
    return identity & _FAILURE_MASK | blame << _FAILURE_BITS


def unpack_failure(word: int) -> tuple[int, Blame]:
    """Return the name id and blame of a failure's word."""
    return word & _FAILURE_MASK, _BLAMES.get(word >> _FAILURE_BITS, Blame.UNKNOWN)


def tape_size(capacity: int) -> int:
    """Return the size in bytes of a tape whose ring holds `capacity` records."""
    return RING_OFFSET + capacity * RECORD_SIZE


def ring_capacity(wanted: int) -> int:
    """Return the capacity of a ring that should hold `wanted` records: one more for a multiple of `CHECK_MODULUS`.

    In a ring of such a size a word stored one lap late would pass the check of the record that it lands on.
    """
    return wanted if wanted % CHECK_MODULUS else wanted + 1


def is_ring_capacity(capacity: int) -> bool:
    """Whether a ring may hold this number of records."""
    return MIN_CAPACITY <= capacity <= MAX_CAPACITY and capacity == ring_capacity(capacity)


def float_bits(value: float) -> int:
    """Return the bits of a number as float32, to whose range finite ones are clipped."""
    clipped = max(-_LARGEST_FLOAT, min(value, _LARGEST_FLOAT)) if math.isfinite(value) else value
    return _BITS.unpack(_FLOAT.pack(clipped))[0]


def float_of(bits: int) -> float:
    """Return the number with these bits as float32."""
    return _FLOAT.unpack(_BITS.pack(bits))[0]


# A tape has 64 unsigned bits for a time, a position or a size. OTLP, archives and MessagePack have 63, and an exporter
# logs an error for each larger number. A damaged record does not pass its CRC, so such a number is a forged one, or the
# size of a tensor that takes no memory (`expand`, device `meta`). Everything that is made of a record is checked here.

MAX_NUMBER: Final = MAX_TIME_NS
"""Upper bound of times in nanoseconds, positions and sizes. The sum of two fits 63 bits."""
_NUMBER_BITS: Final = MAX_NUMBER.bit_length()


def check_position(number: int, time_ns: int, step: int, sequence: int) -> None:
    """Check the three numbers that say which record it is.

    Raises:
        ValueError: One is negative or larger than `MAX_NUMBER`.
    """
    if (time_ns | step | sequence) >> _NUMBER_BITS:  # also of a negative one, whose upper bits are all set
        raise ValueError(f"record {number} is at an impossible time or position")


def clipped(size: int) -> int:
    """Clip a size or a count to `MAX_NUMBER`: its record stays evidence of a stall."""
    return min(size, MAX_NUMBER)


def prepare_activity(kind: ActivityKind, detail: int, thread: int, message_bytes: int = 0) -> bytes:
    """Pack an activity for `TapeWriter.begin_prepared`; its sequence is its parent's number.

    The arguments are those of `Activity`.
    """
    return PAYLOAD_TAIL.pack(message_bytes, 0, kind, 0, detail, -1, 0, thread, RecordKind.ACTIVITY, 0, 0, 0)


def prepare_call(kind: ActivityKind, function: int, thread: int, call: RemoteCall) -> bytes:
    """Pack one side of a call for `TapeWriter.begin_prepared`; its sequence is `caller_number`.

    Args:
        kind: Which side.
        function: Name id of the function.
        thread: Native id of the thread.
        call: The rest.

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
