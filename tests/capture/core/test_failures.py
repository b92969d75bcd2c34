"""The description of an exception that ends a rank."""

import json

from otel_torchdist.capture.core.failures import MAX_SHOWN, describe_raised
from otel_torchdist.model.names import RaisedName


class Mute(Exception):
    """An exception whose `str` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(text: str) -> RaisedName:
    """Return the description of a decoding error that the standard library raises."""
    try:
        json.loads(text)
    except ValueError as error:
        return describe_raised(error)
    raise AssertionError


def test_line_of_the_program() -> None:
    """The innermost line of user code is described, not the library's line that raised."""
    found = raised("{")
    assert (found.type, found.function, found.file) == ("JSONDecodeError", "raised", __file__)
    assert found.line == raised.__code__.co_firstlineno + 3
    assert found.message.startswith("Expecting property name")


def test_first_line_of_what_it_says() -> None:
    """The first line of the message is kept, truncated.

    An empty message, or a `str` that raises, gives an empty text.
    """
    assert describe_raised(ValueError("\nloss is nan.\nmore")) == RaisedName("ValueError", "loss is nan")
    assert describe_raised(ValueError("x" * 999)).message == "x" * MAX_SHOWN
    assert describe_raised(KeyboardInterrupt()) == RaisedName("KeyboardInterrupt", "")
    assert describe_raised(Mute()) == RaisedName("Mute", "")
