"""A Debian of a newer suite in a folder, with Pythons whose libc is newer than this machine's.

Only root can create it and run programs in it. It is created once, with debootstrap, in the user's cache.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIRROR: Final = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SUITE: Final = os.environ.get("DEBIAN_SUITE", "forky")
VERSIONS: Final = ("3.14", "3.15")
"""Versions of Python in the suite."""
CHECKOUT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("ca-certificates", "g++", "git", "iproute2", "make", "procps")
_SCRIPT: Final = "sid"
"""debootstrap's script. Older ones do not know newer suites, but all suites are created alike."""
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_SHARED: Final = ("/proc", "/dev", "/sys")
_NAMES: Final = ("/etc/hosts", "/etc/resolv.conf")
"""This machine's names: torchrun waits forever for a store on a host whose own name has no address."""
_BUILT: Final = "/built"
"""Libraries that tests build in the checkout: with this libc they would not load outside."""


class PythonsError(Exception):
    """An interpreter or its environment cannot be made."""


@dataclass(frozen=True)
class Debian:
    """The folder of a Debian.

    Attributes:
        root: The folder.
    """

    root: Path

    @property
    def is_complete(self) -> bool:
        """Whether all packages are installed."""
        return (self.root / ".complete").is_file()

    def create(self) -> None:
        """Create the folder, or complete it after an interruption.

        Raises:
            PythonsError: This is not root, or debootstrap is missing or has failed.
        """
        if os.geteuid() != 0:
            raise PythonsError("only root can create a Debian in a folder")
        if shutil.which("debootstrap") is None:
            raise PythonsError("debootstrap is not installed: apt-get install debootstrap")
        packages = [*_PACKAGES, *(f"python{version}-venv" for version in VERSIONS)]
        self.root.mkdir(parents=True, exist_ok=True)
        include = f"--include={','.join(packages)}"
        command = ["debootstrap", "--variant=minbase", include, SUITE, str(self.root), MIRROR]
        script = Path("/usr/share/debootstrap/scripts") / _SCRIPT
        if subprocess.run([*command, str(script)], check=False).returncode:
            raise PythonsError(f"debootstrap has failed: see {self.root}/debootstrap/debootstrap.log")
        if _CERTIFICATES.is_file():  # a company's own are among them
            shutil.copy(_CERTIFICATES, self.root / _CERTIFICATES.relative_to("/"))
        (self.root / ".complete").touch()

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` in this Debian, with the checkout at its usual path.

        The mounts belong to a namespace of the command: they disappear with it.
        """
        checkout, built = self.root / CHECKOUT.relative_to("/"), self.root / _BUILT.lstrip("/")
        for folder in (checkout, built, self.root / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        (CHECKOUT / ".built").mkdir(exist_ok=True)
        names = [name for name in _NAMES if Path(name).is_file()]
        for name in names:
            Path(f"{self.root}{name}").touch()
        mounts = [("--rbind", name, f"{self.root}{name}") for name in _SHARED]
        mounts += [("--bind", name, f"{self.root}{name}") for name in names]
        mounts += [("--bind", str(CHECKOUT), str(checkout)), ("--bind", str(built), f"{checkout}/.built")]
        lines = [shlex.join(["mount", option, source, target]) for option, source, target in mounts]
        inside = f"cd {shlex.quote(str(CHECKOUT))} && exec {shlex.join(command)}"
        lines.append(shlex.join(["exec", "chroot", str(self.root), "/bin/sh", "-c", inside]))
        return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", "\n".join(lines)]
