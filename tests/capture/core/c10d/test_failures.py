"""The cause that an exception's message blames, as recorded on the tape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

import otel_torchdist
from otel_torchdist.capture.core.failures import CONNECTION, TIMEOUT, blame_of
from otel_torchdist.model.kinds import Blame
from otel_torchdist.model.names import MAX_NAMES
from otel_torchdist.tape.layout import pack_failure, unpack_failure

PACKAGE = Path(otel_torchdist.__file__).parent
PAIR = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561]"


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (
            RuntimeError("[…/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"),
            Blame.TIMEOUT,
        ),
        (RuntimeError("Operation timed out!"), Blame.TIMEOUT),
        (RuntimeError("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"), Blame.TIMEOUT),
        (dist.DistStoreError("wait timeout after 2000ms, keys: /default_pg/0//1//cpu//0/0"), Blame.TIMEOUT),
        (dist.DistBackendError("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2)"), Blame.TIMEOUT),
        (RuntimeError(f"{PAIR} Connection closed by peer [127.0.0.1]:16293."), Blame.CONNECTION),
        (RuntimeError(f"{PAIR} Read error [127.0.0.1]:19687: Connection reset by peer."), Blame.CONNECTION),
        (RuntimeError(f"{PAIR} Write error [127.0.0.1]:19687: Broken pipe."), Blame.CONNECTION),
        (
            RuntimeError(
                f"Gloo connectFullMesh failed with [{PAIR} timed out connecting: SO_ERROR: Connection refused"
            ),
            Blame.CONNECTION,
        ),
        (
            dist.DistNetworkError("The server socket has failed to listen. port: 1, code: -98, name: EADDRINUSE"),
            Blame.TAKEN,
        ),
        (RuntimeError("The size of tensor a (4) must match the size of tensor b (8)"), Blame.UNKNOWN),
        (RuntimeError(), Blame.UNKNOWN),
        (RuntimeError(7), Blame.UNKNOWN),
        (ValueError("timed out"), Blame.UNKNOWN),
        (KeyboardInterrupt(), Blame.UNKNOWN),
    ],
)
def test_messages(error: BaseException, blame: Blame) -> None:
    """The messages of gloo, NCCL and stores are classified. The program's own exceptions have no known cause."""
    assert blame_of(error) is blame


def test_message_that_runs_code() -> None:
    """Only plain strings are read, so handling an exception runs no code of the program."""

    class Trap(RuntimeError):
        def __str__(self) -> str:
            raise AssertionError

    Trap.__qualname__ = "RuntimeError"
    assert blame_of(Trap("timed out")) is Blame.TIMEOUT


@pytest.mark.parametrize("blame", list(Blame))
@pytest.mark.parametrize("identity", [0, 1, MAX_NAMES])
def test_word_holds_both(identity: int, blame: Blame) -> None:
    """A 32-bit word holds type and cause, as in the native library. A cause from another version reads as unknown."""
    word = pack_failure(identity, blame)
    assert 0 <= word < 1 << 32
    assert unpack_failure(word) == (identity, blame)
    assert unpack_failure(identity | 0xFF << 24) == (identity, Blame.UNKNOWN)


def test_native_library_looks_for_the_same() -> None:
    """The native library looks for the same phrases as Python."""
    source = (PACKAGE / "native" / "source" / "completion.cc").read_text()
    assert [part for part in (*TIMEOUT, *CONNECTION) if f'"{part}"' not in source] == []
