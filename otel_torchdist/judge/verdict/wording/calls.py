"""Operations, lines of code and mismatched calls in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from otel_torchdist.judge.world.divergence import CallSide, Divergence
from otel_torchdist.judge.world.mismatch import Field, Mismatch
from otel_torchdist.judge.world.part_sizes import COUNTED_IN_ROWS, Misfit
from otel_torchdist.model.calls import ANY_RANK, Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.occupations import SharedGroup
from otel_torchdist.model.text import have, name_ranks
from otel_torchdist.tape.names.reader import MAIN_THREAD

# --- operations -------------------------------------------------------------------------------------------------------


def describe_operation(operation: str, group: GroupView | None, operation_id: OperationId, label: str = "") -> str:
    """Describe an operation as users name it: `all_reduce (sequence 118, default_pg)`, `all_gather (FSDP layers.3, …)`.

    Args:
        operation: Name of the operation.
        group: Its group; None if unknown.
        operation_id: Its id.
        label: Purpose of the operation; see `OperationView`.
    """
    channel = operation_id.channel
    details: list[str] = [label] if label else []
    details += _message(channel)
    if channel.kind is not RecordKind.RENDEZVOUS:
        details.append(f"sequence {operation_id.sequence}")
    details.append(group.title if group is not None else "unknown group")
    return f"{operation} ({', '.join(details)})"


def describe_instead(operation: OperationView) -> str:
    """Describe an operation that does not match: `send (from rank 0 to rank 1, tag 12)`, `all_reduce (mesh_tp)`."""
    title = operation.group.title if operation.group is not None else "unknown group"
    return f"{operation.name} ({', '.join(_message(operation.operation_id.channel) or [title])})"


def _message(channel: Channel) -> list[str]:
    if not channel.is_point_to_point:
        return []
    source = "any rank" if channel.source == ANY_RANK else f"rank {channel.source}"
    route = f"from {source} to rank {channel.destination}"
    return [route, f"tag {channel.tag}"] if channel.tag >= 0 else [route]


# --- lines of code ----------------------------------------------------------------------------------------------------


def describe_frame(frame: CallSiteName) -> str:
    """Describe a stack frame: `load_batch at train.py:57`."""
    return f"{_name(frame.function)} at {describe_line(frame)}"


def at_line(frame: CallSiteName | None) -> str:
    """Describe a call site after an operation: ` at evaluate, train.py:61`; '' if unknown."""
    return f" at {_name(frame.function)}, {describe_line(frame)}" if frame is not None else ""


def describe_through(frame: CallSiteName | None) -> str:
    """Describe the library function called by a line: `torchmetrics' gather_all_tensors`; '' if there is none."""
    package, _, function = frame.through.partition(".") if frame is not None else ("", "", "")
    return f"{package}'{'' if package.endswith('s') else 's'} {_name(function)}" if function else ""


def called_in(frame: CallSiteName | None) -> str:
    """Describe a call: `, called in main at train.py:61 through torchmetrics' gather_all_tensors`; '' if unknown."""
    through = describe_through(frame)
    return (f", called in {describe_frame(frame)}" + (f" through {through}" if through else "")) if frame else ""


def _name(function: str) -> str:
    return function.replace(".<locals>", "")


def describe_line(frame: CallSiteName) -> str:
    """Describe a line: `train.py:57`, with the folder for a package's `__init__.py`."""
    path = PurePath(frame.file)
    name = "/".join(path.parts[-2:]) if path.name == "__init__.py" else path.name
    return f"{name}:{frame.line}"


def describe_raised(subject: str, exception: str, line: str, message: str) -> str:
    """Describe an exception: `it raised ValueError in load_batch at train.py:57: "loss is nan"`."""
    says = f': "{message}"' if message else ""
    return f"{subject} raised {exception} in {line}{says}"


# --- parties of a mismatch --------------------------------------------------------------------------------------------


MAX_SIDES: Final = 3
"""Maximum number of parties in a sentence."""


def describe_divergence(mismatch: Mismatch, gone: Collection[int] = ()) -> str:
    """Describe mismatched calls: `rank 2 is in all_gather at evaluate, train.py:61, where …`; '' if they look alike.

    Args:
        mismatch: The calls.
        gone: Ranks that have ended, described in the past tense.
    """
    divergence = mismatch.divergence
    if divergence is None or not divergence.differ or not _should_meet(mismatch):
        return ""
    has_labels = len({side.label for side in divergence.sides}) > 1
    sides = zip(divergence.sides, mismatch.parties, strict=True)
    line = _shared_line(divergence)
    at = "" if line is None else f", all called{at_line(line)}"
    usual, *others = [
        _describe(side if has_labels else replace(side, label=""), ranks, gone, line is not None)
        for side, (_, ranks) in sides
    ]
    if not mismatch.has_majority:
        return f"ranks are in different calls: {', '.join([usual, *others][:MAX_SIDES])}{at}"
    ranks = mismatch.ranks
    return f"{', '.join(others[:MAX_SIDES])}, where {usual}{_left_out(divergence, ranks)}{at}"


def _should_meet(mismatch: Mismatch) -> bool:
    """Return whether the parties should call from the same line, so that different lines alone are a mismatch."""
    return mismatch.field is not Field.MEMBERS and not mismatch.operation_id.channel.is_point_to_point


def describe_message_lines(mismatch: Mismatch) -> str:
    """Describe both lines of a message: `, sent at forward, model.py:12, and received at …`; '' for collectives."""
    sides = mismatch.divergence.sides if mismatch.divergence is not None else ()
    if not mismatch.operation_id.channel.is_point_to_point or mismatch.misfit is None or len(sides) != 2:
        return ""
    received, sent = (at_line(side.site) for side in sides)
    return f", sent{sent} and received{received}" if sent and received else ""


def _left_out(divergence: Divergence, ranks: tuple[int, ...]) -> str:
    skipped = divergence.left_out
    if skipped is None:
        return ""
    have_left_out = f"{name_ranks(ranks)} {have(ranks)} left out"
    if _without_library_function(skipped) == _without_library_function(divergence.sides[0]):
        return f", which {have_left_out}"
    return f": {have_left_out} {skipped.operation}{_label(skipped)}{at_line(skipped.site)}"


def _without_library_function(side: CallSide) -> CallSide:
    """Return a side without the library function called by its line: a library makes several calls from one line."""
    return side if side.site is None else replace(side, site=replace(side.site, through=""))


def describe_values(mismatch: Mismatch) -> list[str]:
    """Describe differing arguments: `the dtype differs: int64 on ranks 0-1, …`; empty if the operations differ."""
    if mismatch.field is Field.OPERATION:
        return []
    values = ", ".join(f"{text} on {name_ranks(ranks)}" for text, ranks in mismatch.parties[:MAX_SIDES])
    return [f"the {mismatch.field.value} differs: {values}"]


def describe_libraries(divergence: Divergence | None) -> list[str]:
    """Describe calls made through a library: `in evaluate it is called by torchmetrics' gather_all_tensors`."""
    if divergence is None or _shared_line(divergence) is not None:
        return []  # the cause includes them
    sites = [side.site for side in divergence.sides if side.site is not None]
    libraries = {site.function: describe_through(site) for site in sites}
    return [f"in {function} it is called by {through}" for function, through in libraries.items() if through]


def common_line(divergence: Divergence | None) -> str:
    """Describe the line of all parties: ` at forward, model.py:28`; '' if they differ."""
    if divergence is None or divergence.differ:
        return ""
    sites = {side.site for side in divergence.sides}
    return at_line(sites.pop()) if len(sites) == 1 else ""


def _shared_line(divergence: Divergence) -> CallSiteName | None:
    """Return the only user line, such as a trainer's entry, if the library functions it calls differ; else None."""
    sites = [side.site for side in divergence.sides if side.site is not None]
    lines = {replace(site, through="") for site in sites}
    is_shared = len(lines) == 1 < len(set(sites)) and len(sites) == len(divergence.sides)
    return lines.pop() if is_shared else None


def _describe(side: CallSide, ranks: tuple[int, ...], gone: Collection[int], in_library: bool) -> str:
    """Describe where ranks are; with `in_library`, by library function, since all ranks share the line."""
    through = describe_through(side.site)
    where = (f" of {through}" if through else "") if in_library else at_line(side.site)
    are, were = ("is", "was") if len(ranks) == 1 else ("are", "were")
    return f"{name_ranks(ranks)} {were if {*ranks} <= {*gone} else are} in {side.operation}{_label(side)}{where}"


def _label(side: CallSide) -> str:
    return f" ({side.label})" if side.label else ""


# --- sizes ------------------------------------------------------------------------------------------------------------
# Sizes of an exchange that do not fit: `rank 1 sends 3 rows to rank 2, which expects 5`.


def describe_misfit(misfit: Misfit, operation: str) -> str:
    """Describe two members' sizes that do not fit: in rows or elements if both use the same unit, else in bytes."""
    unit = misfit.unit
    names = ("row", "rows") if operation in COUNTED_IN_ROWS else ("element", "elements")
    if not unit or misfit.sent % unit or misfit.expected % unit:
        unit, names = 1, ("byte", "bytes")
    sent, expected = misfit.sent // unit, misfit.expected // unit
    sends = f"rank {misfit.sender} sends {sent:,} {names[sent != 1]} to"
    if misfit.sender == misfit.receiver:
        return f"{sends} itself and expects {expected:,}"
    return f"{sends} rank {misfit.receiver}, which expects {expected:,}{_more(misfit)}"


def _more(misfit: Misfit) -> str:
    """Describe further pairs that do not fit, and the rank they have in common."""
    if misfit.pairs < 2:
        return ""
    alone = f", all of them with rank {misfit.ranks[0]}" if len(misfit.ranks) == 1 else ""
    return f" ({misfit.pairs} pairs do not fit{alone})"


# --- orders of creation -----------------------------------------------------------------------------------------------


MAX_PARTIES: Final = 3


def describe_creations(mismatch: Mismatch) -> str:
    """Describe creations: `rank 3 has created group 2 with ranks 2-3 at build, train.py:12, where ranks 0-2 …`."""
    number = mismatch.operation
    sites = [side.site for side in mismatch.divergence.sides] if mismatch.divergence is not None else []
    lines = {site for site in sites if site is not None}
    common = at_line(lines.pop()) if len(lines) == 1 else ""
    line_texts = [at_line(site) if not common else "" for site in sites] or [""] * len(mismatch.parties)
    (usual_members, usual_ranks), *others = mismatch.parties
    usual = f"with {usual_members}{line_texts[0]}"
    parties = [
        f"{name_ranks(ranks)} {have(ranks)} created group {number} with {members}{line}"
        for (members, ranks), line in zip(others[:MAX_PARTIES], line_texts[1:], strict=False)
    ]
    return f"{', '.join(parties)}, where {name_ranks(usual_ranks)} {have(usual_ranks)} created it {usual}{common}"


def describe_sharing(ranks: tuple[int, ...], example: SharedGroup, group: str) -> str:
    """Describe which two threads use a group, and where they call."""
    calls = [
        _describe_call(*call) for call in zip(example.operations, example.call_sites, example.callers, strict=True)
    ]
    return f"two threads of {name_ranks(ranks)} share {group}: {' and '.join(calls)}"


def _describe_call(operation: str, site: CallSiteName | None, caller: str) -> str:
    thread = "the main thread" if caller == MAIN_THREAD else caller.partition(" (")[0] or "one"
    line = f" at {describe_line(site)}" if site is not None else ""
    return f"{thread} calls {operation}{line}"


def describe_mismatch(mismatch: Mismatch, group: GroupView | None) -> str:
    """Describe which ranks made which call, the minority first."""
    if mismatch.field is Field.MEMBERS:
        return describe_creations(mismatch)
    operation_id = describe_operation(mismatch.operation, group, mismatch.operation_id)
    if mismatch.misfit is not None:
        line = common_line(mismatch.divergence) or describe_message_lines(mismatch)
        return f"{describe_misfit(mismatch.misfit, mismatch.operation)}, in {operation_id}{line}"
    divergence = describe_divergence(mismatch)
    if divergence:
        return "; ".join([f"{divergence}, in {operation_id}", *describe_values(mismatch)])
    line = common_line(mismatch.divergence)
    if not mismatch.has_majority:
        parties = ", ".join(_describe_party(ranks, text) for text, ranks in mismatch.parties[:MAX_PARTIES])
        return f"ranks disagree on the {mismatch.field.value} of {operation_id}{line}: {parties}"
    (usual_value, usual_ranks), *others = mismatch.parties
    if mismatch.field is Field.OPERATION:
        parties = ", ".join(_describe_party(ranks, f"entered {text}") for text, ranks in others[:MAX_PARTIES])
        return f"{parties} where {_describe_party(usual_ranks, 'entered')} {operation_id}{line}"
    parties = ", ".join(
        _describe_party(ranks, f"{mismatch.field.value} {text}") for text, ranks in others[:MAX_PARTIES]
    )
    return f"{parties} where {_describe_party(usual_ranks, usual_value)} in {operation_id}{line}"


def _describe_party(ranks: tuple[int, ...], call: str) -> str:
    return f"{name_ranks(ranks)} {have(ranks)} {call}"
