"""Which kernel records, and what is logged about it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from otel_torchdist.config import CaptureKernel
from otel_torchdist.native.build import build
from otel_torchdist.native.library import NativeError, chosen_library, find_library, library_name
from tests.support.native.native_library import native_cache

LOG = "otel_torchdist"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of this user's libraries, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "otel-torchdist" / "native"
    folder.mkdir(parents=True)
    return folder


def test_none_is_there(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By default Python records, and a line at INFO says so; if the library was asked for, it is a warning."""
    with caplog.at_level(logging.INFO, LOG):
        assert chosen_library(CaptureKernel.AUTO) is None
    [record] = caplog.records
    assert record.levelname == "INFO"
    assert record.message.startswith(f"recording in Python: there is no native library for torch {torch.__version__}")
    caplog.clear()
    assert chosen_library(CaptureKernel.NATIVE) is None
    [message] = caplog.messages
    assert message.startswith(f"there is no native library for torch {torch.__version__} on ")
    assert message.endswith(
        "; `otel-torchdist build-native` builds one: recording in Python, which takes longer "
        "(OTEL_PYTHON_TORCHDIST_CAPTURE)"
    )


def test_it_is_no_library(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the dynamic linker refuses is one warning with its reason, and Python records."""
    (cache / library_name(torch.__version__)).write_bytes(b"not a library at all, " * 100)
    assert chosen_library(CaptureKernel.AUTO) is None
    [message] = caplog.messages
    assert f"{cache}/otel_torchdist-torch" in message
    assert "cannot be loaded" in message
    assert "recording in Python" in message


def test_it_is_for_another_torch(
    cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was renamed, or is left from before torch was upgraded, is not used."""
    built = native_cache() / "otel-torchdist" / "native" / library_name(torch.__version__)
    (cache / library_name("2.99.0")).symlink_to(built)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert chosen_library(CaptureKernel.AUTO) is None
    [message] = caplog.messages
    assert " is for torch 2." in message
    assert "and this is torch 2.99.0" in message


def test_it_fits(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is used, and the log says so; with `python` it is left alone."""
    name = library_name(torch.__version__)
    (cache / name).symlink_to(native_cache() / "otel-torchdist" / "native" / name)
    with caplog.at_level(logging.INFO, LOG):
        assert chosen_library(CaptureKernel.PYTHON) is None
        library = chosen_library(CaptureKernel.AUTO)
    assert library is not None
    assert caplog.messages == [f"recording natively, with {cache / name}"]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason is one sentence, and nothing is left behind."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeError, match="there is no C\\+\\+ compiler"):
        build(tmp_path / "libraries")
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(NativeError, match=r"/bin/false cannot make .*: it says nothing"):
        build(tmp_path / "libraries")
    assert not [*(tmp_path / "libraries").iterdir()]
    with pytest.raises(NativeError):
        find_library(tmp_path / "libraries")
