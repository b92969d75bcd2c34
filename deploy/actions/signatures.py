"""Signatures of the Standard Webhooks specification: HMAC-SHA256 over id, time and body, in base64."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TOLERANCE_S: Final = 300
"""Seconds by which the time of a message may differ from the receiver's clock: older messages may be replayed."""
MIN_SECRET: Final = 24
_PREFIX: Final = "whsec_"
_VERSION: Final = "v1"


def read_secret(file: Path) -> bytes:
    """Read a secret: `whsec_` and base64, or plain text.

    Raises:
        OSError: The file cannot be read.
        ValueError: The secret is shorter than 24 bytes, or not base64.
    """
    text = file.read_text(encoding="utf-8").strip()
    try:
        secret = (
            base64.b64decode(text.removeprefix(_PREFIX), validate=True) if text.startswith(_PREFIX) else text.encode()
        )
    except binascii.Error as error:
        raise ValueError(f"{file} is not base64 after {_PREFIX}") from error
    if len(secret) < MIN_SECRET:
        raise ValueError(f"{file} has {len(secret)} bytes; a secret has at least {MIN_SECRET}")
    return secret


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message, such as `v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=`."""
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return f"{_VERSION},{base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()}"


def verify(secret: bytes, headers: Mapping[str, str], body: bytes, now: float | None = None) -> str:
    """Verify a received message; return its id. The header may have several signatures, while a secret is changed.

    Raises:
        ValueError: A header is missing, the message is too old or from the future, or no signature fits.
    """
    try:
        message_id, timestamp = headers["webhook-id"], int(headers["webhook-timestamp"])
        given = headers["webhook-signature"].split()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError("a header is missing") from error
    if abs(int(time.time() if now is None else now) - timestamp) > TOLERANCE_S:
        raise ValueError("the message is too old, or from the future")
    expected = sign(secret, message_id, timestamp, body)
    if not any(hmac.compare_digest(expected.encode(), entry.encode()) for entry in given):
        raise ValueError("no signature fits")
    return message_id
