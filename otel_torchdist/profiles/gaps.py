"""What traces leave out, in sentences: it is not guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from otel_torchdist.model.collectives import BARRIERS
from otel_torchdist.naming import compress_ranks
from otel_torchdist.profiles.groups import ProfiledGroups
from otel_torchdist.profiles.profile import RankProfile

SHOWN_NAMES: Final = 8


def gaps_in(profiles: Iterable[RankProfile], groups: ProfiledGroups) -> Iterator[str]:
    """Describe how many calls have no known group, or no size, and why.

    Args:
        profiles: One for each rank.
        groups: The groups of the job.
    """
    nameless = total = sizeless = 0
    unknown: Counter[str] = Counter()
    users: set[int] = set()
    for profile in profiles:
        for arguments, calls in Counter(call.arguments for call in profile.calls).items():
            total += calls
            if arguments.elements is None and not arguments.shapes and arguments.operation not in BARRIERS:
                sizeless += calls
            if groups.group_of(profile, arguments, aligned=False) is not None:
                continue
            if arguments.group is None:
                nameless += calls
            else:
                unknown[arguments.group] += calls
                users.add(profile.rank)
    if nameless:
        yield (
            f"{nameless:,} of {total:,} calls are in no group that the traces name, as those of gloo, those of "
            "2023, and kernels alone: neither their bytes nor what they are for can be attributed"
        )
    if sizeless:
        yield (
            f"{sizeless:,} of {total:,} calls have no size: gloo's have one only in traces with shapes "
            "(`profile(record_shapes=True)`), kernels alone have none"
        )
    if unknown:
        names = ", ".join(sorted(unknown)[:SHOWN_NAMES]) + (", …" if len(unknown) > SHOWN_NAMES else "")
        yield (
            f"{unknown.total():,} of {total:,} calls, of ranks {compress_ranks(users)}, are in groups of which no "
            f"trace lists the members ({names}): they are left out"
        )
