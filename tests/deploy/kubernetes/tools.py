"""Programs that `make kubernetes-tools` and `make kubernetes-server` have built; tests are skipped without them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from deploy.native.servers import cache_folder

_STACK: Final = cache_folder() / "stack"


def tool(name: str) -> Path:
    """A program that checks the chart; without it, the test is skipped, and fails in CI."""
    path = _STACK / "bin" / name
    if path.is_file():
        return path
    missing = f"no {name}: `make kubernetes-tools` builds it"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def resource_definitions() -> list[Path]:
    """The files with the definitions of resources that operators bring."""
    if not (_STACK / "resource-definitions" / ".complete").is_file():
        tool("resource-definitions")
    return sorted((_STACK / "resource-definitions").glob("*.yaml"))


def server_program(name: str) -> Path:
    """A program of the API server; without it, the test is skipped, also in CI: it takes up to an hour to build."""
    path = _STACK / "bin" / name
    if path.is_file():
        return path
    pytest.skip(f"no {name}: `make kubernetes-server` builds it, which takes up to an hour")


def etcd() -> str:
    """The API server's storage; without it, the test is skipped."""
    return shutil.which("etcd") or pytest.skip("no etcd: on Debian, root installs it with apt-get install etcd-server")
