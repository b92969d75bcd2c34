"""Operations and lines of code, in words."""

from __future__ import annotations

from pathlib import PurePath

from otel_torchdist.model.calls import ANY_RANK, Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import CallSiteName

# --- Operations, in words ---------------------------------------------------------------------------------------------


def describe_operation(operation: str, group: GroupView | None, operation_id: OperationId, label: str = "") -> str:
    """An operation as users name it: `all_reduce (sequence 118, default_pg)`, `all_gather (FSDP layers.3, …)`.

    Args:
        operation: Its name.
        group: Its group; None if it is not known.
        operation_id: Its id.
        label: What it is for; see `OperationView`.
    """
    channel = operation_id.channel
    details: list[str] = [label] if label else []
    details += _message(channel)
    if channel.kind is not RecordKind.RENDEZVOUS:
        details.append(f"sequence {operation_id.sequence}")
    details.append(group.title if group is not None else "unknown group")
    return f"{operation} ({', '.join(details)})"


def describe_instead(operation: OperationView) -> str:
    """What a rank is in that does not match: `send (from rank 0 to rank 1, tag 12)`, `all_reduce (mesh_tp)`."""
    title = operation.group.title if operation.group is not None else "unknown group"
    return f"{operation.name} ({', '.join(_message(operation.operation_id.channel) or [title])})"


def _message(channel: Channel) -> list[str]:
    if not channel.is_point_to_point:
        return []
    source = "any rank" if channel.source == ANY_RANK else f"rank {channel.source}"
    ends = f"from {source} to rank {channel.destination}"
    return [ends, f"tag {channel.tag}"] if channel.tag >= 0 else [ends]


# --- Lines of code, in words ------------------------------------------------------------------------------------------


def describe_frame(frame: CallSiteName) -> str:
    """`load_batch at train.py:57`."""
    return f"{_name(frame.function)} at {describe_line(frame)}"


def at_line(frame: CallSiteName | None) -> str:
    """` at evaluate, train.py:61`; '' if the line is not known."""
    return f" at {_name(frame.function)}, {describe_line(frame)}" if frame is not None else ""


def describe_through(frame: CallSiteName | None) -> str:
    """`torchmetrics' gather_all_tensors`, the function of a library that a line has called; '' if it calls none."""
    package, _, function = frame.through.partition(".") if frame is not None else ("", "", "")
    return f"{package}'{'' if package.endswith('s') else 's'} {_name(function)}" if function else ""


def called_in(frame: CallSiteName | None) -> str:
    """`, called in main at train.py:61 through torchmetrics' gather_all_tensors`; '' if the line is not known."""
    through = describe_through(frame)
    return (f", called in {describe_frame(frame)}" + (f" through {through}" if through else "")) if frame else ""


def _name(function: str) -> str:
    return function.replace(".<locals>", "")


def describe_line(frame: CallSiteName) -> str:
    """`train.py:57`, and for the file of a package its folder."""
    path = PurePath(frame.file)
    name = "/".join(path.parts[-2:]) if path.name == "__init__.py" else path.name
    return f"{name}:{frame.line}"


def describe_raised(subject: str, exception: str, line: str, message: str) -> str:
    """`it raised ValueError in load_batch at train.py:57: "loss is nan"`."""
    says = f': "{message}"' if message else ""
    return f"{subject} raised {exception} in {line}{says}"
