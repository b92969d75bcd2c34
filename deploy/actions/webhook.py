"""Posts the verdict to an HTTPS address, signed as the Standard Webhooks specification says.

    OTEL_PYTHON_TORCHDIST_ON_MACHINE="command:python3 webhook.py --act --secret-file FILE https://ops.example/torchdist"

The receiver verifies the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`; webhook_receiver.py shows
how, and libraries for many languages do the same. All tries of one verdict have the same id, so that a receiver can
ignore repetitions. See https://www.standardwebhooks.com.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import ipaddress
import json
import random
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final

from advice import ActionError, Advice, parser_of, run_adapter
from signatures import read_secret, sign

TOTAL_S: Final = 45.0
"""Seconds for all tries together: the agent ends a command after 60."""
TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 15.0
_TO_BE_REPEATED: Final = (408, 425, 429)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a verdict goes to the configured address only."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Refuse."""
        return


def main() -> int:
    """Post the verdict, or say what would be done."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("url", help="an https:// address; http:// only on loopback")
    parser.add_argument("--secret-file", type=Path, required=True, metavar="FILE", help="whsec_… or at least 24 bytes")
    parser.add_argument("--ca-file", type=Path, metavar="FILE", help="the authority of the receiver's certificate")
    arguments = parser.parse_args()
    return run_adapter(lambda advice: act(advice, arguments))


def act(advice: Advice, arguments: argparse.Namespace) -> str:
    """Post the document, and repeat it while the receiver cannot be reached; return what was done.

    Raises:
        ActionError: The receiver refuses, or could not be reached in time.
    """
    _check_address(arguments.url)
    try:
        secret = read_secret(arguments.secret_file)
        context = ssl.create_default_context(cafile=str(arguments.ca_file) if arguments.ca_file else None)
    except (OSError, ValueError) as error:
        raise ActionError(f"secret or certificate cannot be used: {error}") from error
    host = urllib.parse.urlsplit(arguments.url).netloc
    if not arguments.act:
        return f"would post {advice.document['verdict']} ({advice.action}) to {host} (--act does it)"
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirects())
    return _post(urllib.request.build_opener(*handlers), arguments.url, advice, secret)


def _check_address(url: str) -> None:
    address = urllib.parse.urlsplit(url)
    if address.scheme == "https" and address.hostname:
        return
    if address.scheme == "http" and _is_loopback(address.hostname or ""):
        return
    raise ActionError(f"{url!r} is no https:// address")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _post(opener: urllib.request.OpenerDirector, url: str, advice: Advice, secret: bytes) -> str:
    body = json.dumps(advice.document, separators=(",", ":")).encode()
    # One id for a verdict and its advice: later advice on the same incident is news.
    subject = (
        f"{advice.document['trace_id']} {advice.document['occasion']} {advice.document['verdict']} {advice.action}"
    )
    message_id = f"msg_{hashlib.sha256(subject.encode()).hexdigest()[:32]}"
    deadline, pause_s, tries = time.monotonic() + TOTAL_S, FIRST_PAUSE_S, 0
    while True:
        tries += 1
        refusal, wait_s = _try(opener, url, body, message_id, secret)
        if not refusal:
            return f"posted {message_id} at try {tries}"
        wait_s = max(wait_s, pause_s * random.uniform(0.5, 1.0))
        if time.monotonic() + wait_s + 1.0 >= deadline:
            raise ActionError(f"{message_id} was not delivered in {tries} tries: {refusal}")
        time.sleep(wait_s)
        pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)


def _try(
    opener: urllib.request.OpenerDirector, url: str, body: bytes, message_id: str, secret: bytes
) -> tuple[str, float]:
    """Post once. Return why it failed, or '', and the seconds for which the receiver asks to wait.

    Raises:
        ActionError: The receiver refuses for good.
    """
    timestamp = int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": "otel-torchdist",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, message_id, timestamp, body),
    }
    try:
        request = urllib.request.Request(url, body, headers, method="POST")
        with opener.open(request, timeout=TIMEOUT_S):
            return "", 0.0
    except urllib.error.HTTPError as error:
        with error:
            refusal = f"{error.code} {error.reason}"
            if error.code < 500 and error.code not in _TO_BE_REPEATED:
                raise ActionError(f"the receiver refuses {message_id}: {refusal}") from error
            after = error.headers.get("retry-after", "")
            return refusal, float(after) if after.isascii() and after.isdecimal() else 0.0
    except ssl.SSLCertVerificationError as error:
        raise ActionError(f"the receiver's certificate: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise ActionError(f"the receiver's certificate: {reason.verify_message}") from error
        return str(reason), 0.0


if __name__ == "__main__":
    raise SystemExit(main())
