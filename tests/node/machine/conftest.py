"""Fixtures of the machine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

FAKE_NVML = Path(__file__).parent / "fake_nvml"


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """`pynvml` is a library that behaves like NVIDIA's; `FAKE_NVML` can still be set."""
    monkeypatch.syspath_prepend(str(FAKE_NVML))
    return monkeypatch
