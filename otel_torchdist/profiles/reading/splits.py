"""How an `all_to_all` is split, from the lists of rows that are recorded beside it."""

from __future__ import annotations

from otel_torchdist.profiles.reading.lists import differ, numbers_in


def split_parts(operation: str, rows: str, members: int) -> tuple[int, ...]:
    """Return the rows for each member; empty if they are not recorded, or not all of them.

    Args:
        operation: What was called.
        rows: The list as it is recorded.
        members: Ranks of the group.
    """
    parts = numbers_in(rows) if operation.startswith("all_to_all") else ()
    return parts if len(parts) == members else ()


def is_uneven(operation: str, sent: int | None, received: int | None, rows: str, others: str) -> bool:
    """Whether members get parts of different size, or this rank receives more or less than it sends.

    Args:
        operation: What was called.
        sent: Elements that this rank sends, itself included.
        received: Elements that it receives.
        rows: The list of rows for each member as it is recorded, which may be cut.
        others: The same from each member.
    """
    if not operation.startswith("all_to_all"):
        return False
    return differ(rows) or differ(others) or (sent is not None and received is not None and sent != received)
