"""Certificates for servers on loopback, made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate.

    Attributes:
        file: The certificate.
        key: Its key.
    """

    file: Path
    key: Path


def make_certificate(folder: Path, name: str) -> Certificate:
    """Create a certificate for localhost and 127.0.0.1."""
    made = Certificate(folder / f"{name}.crt", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *names, "-out", made.file, "-keyout", made.key], check=True, capture_output=True)
    return made
