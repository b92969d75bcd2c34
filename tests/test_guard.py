"""Our own errors: contained, logged at a bounded rate, raised in tests."""

import logging
from types import FunctionType

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL
from otel_torchdist.guard import ErrorLog, guarded, report


class Clock:
    """A clock that the test moves."""

    seconds = 100.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds


def _fail() -> int:
    """Fail as a part of ours would."""
    raise ValueError("ours")


fail = FunctionType(_fail.__code__, {"__name__": "otel_torchdist.made_up", "__builtins__": __builtins__}, "fail")


@pytest.mark.usefixtures("contained")
def test_block_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    """An error of a guarded block ends there, and its first line in the log brings the traceback."""
    with guarded("test_block_is_contained"):
        fail()
    [record] = caplog.records
    assert (record.name, record.levelno) == ("otel_torchdist", logging.ERROR)
    assert "test_block_is_contained" in record.getMessage()
    assert record.exc_info is not None
    assert "in _fail" in caplog.text


@pytest.mark.usefixtures("contained")
def test_function_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    """A guarded function keeps its name, gives None when it failed and its result when it did not."""
    assert guarded("test_function_is_contained")(fail)() is None
    assert len(caplog.records) == 1
    double = guarded("test_function_is_contained")(lambda number: number * 2)
    assert double(21) == 42
    assert guarded("test_function_is_contained")(fail).__name__ == "fail"


@pytest.mark.usefixtures("contained")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_pass(kind: type[BaseException]) -> None:
    """Exceptions that users raise to stop the process are not swallowed by us."""
    with pytest.raises(kind), guarded("test_interrupts_pass"):
        raise kind


def test_raised_under_test(caplog: pytest.LogCaptureFixture) -> None:
    """With the variable set, the error itself comes out of report, block and function, unlogged."""
    error = KeyError("ours")
    with pytest.raises(KeyError) as caught:
        report("test_raised_under_test", error)
    assert caught.value is error
    with pytest.raises(ValueError, match="ours"), guarded("test_raised_under_test"):
        fail()
    with pytest.raises(ValueError, match="ours"):
        guarded("test_raised_under_test")(fail)()
    assert not caplog.records


@pytest.mark.parametrize("text", ["", "false", "1"])
def test_only_true_raises(text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The variable follows the rule for booleans: only ``true`` lets our errors out."""
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL, text)
    report(f"test_only_true_raises {text}", ValueError("ours"))
    assert len(caplog.records) == 1


def test_rate_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A place that fails all the time logs one line a minute, and the counts add up."""
    clock = Clock()
    log = ErrorLog(clock)
    for _ in range(3 * 60 * 10):
        log.write("hot path", ValueError("ours"))
        clock.seconds += 0.1
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert caplog.records[0].exc_info is not None
    assert all(record.exc_info is None for record in caplog.records[1:])
    assert all("hot path, 600 more" in line or "hot path, 601 more" in line for line in lines[1:])
    assert "ValueError('ours')" in lines[1]


def test_places_are_separate(caplog: pytest.LogCaptureFixture) -> None:
    """One place that fails all the time does not hide the first error of another."""
    log = ErrorLog(Clock())
    for _ in range(10):
        log.write("first", ValueError("ours"))
    log.write("second", ValueError("ours"))
    assert ["first" in record.getMessage() for record in caplog.records] == [True, False]
