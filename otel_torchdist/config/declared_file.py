"""Reads files of OpenTelemetry's declarative configuration, without OpenTelemetry, because ranks read them too.

There are two: the file in OTEL_CONFIG_FILE, which belongs to a job, and a file on the node, which belongs to the
platform. Scalars are kept as text, as in environment variables, so YAML does not turn `page: off` into `false`.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, cast

from otel_torchdist.environment_variables import OTEL_CONFIG_FILE, OTEL_PYTHON_TORCHDIST_CONFIG
from otel_torchdist.package import INSTRUMENTATION_NAME

NODE_FILE: Final = "/etc/otel_torchdist/config.yaml"
"""Default path of the node's file. `autoload` has it too, because it imports nothing."""
MAX_BYTES: Final = 1 << 20
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_READ_BY_RANKS: Final = (INSTRUMENTATION_NAME, "disabled", "prometheus", "console")
"""Words that a file contains if it has anything for a rank. Without them, a rank does not load PyYAML (0.8 MB)."""
_REFERENCE: Final = re.compile(r"\$\$|\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}\n]*))?\}")


class FileOrigin(Enum):
    """The two configuration files, in order of precedence."""

    JOB = OTEL_CONFIG_FILE
    NODE = OTEL_PYTHON_TORCHDIST_CONFIG


@dataclass(frozen=True)
class DeclaredFile:
    """A configuration file that exists or is named in OTEL_CONFIG_FILE.

    Attributes:
        origin: Which of the two files it is.
        path: Its path.
        document: Its content; empty if it has a problem, or nothing for this reader.
        problem: Why it cannot be used, as the end of a sentence; '' if it can.
    """

    origin: FileOrigin
    path: str
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])
    problem: str = ""

    @property
    def name(self) -> str:
        """The file in messages: the path, after the variable if a user has named the file."""
        return f"{OTEL_CONFIG_FILE}={self.path}" if self.origin is FileOrigin.JOB else self.path

    def part(self, *keys: str) -> Mapping[str, Any]:
        """Return the mapping under nested keys; empty if missing."""
        part = self.document
        for key in keys:
            part = mapping_in(part, key)
        return part


def mapping_in(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping under a key; empty if there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def items_in(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list under a key; empty if there is none."""
    value = cast("list[Any]", listed) if isinstance(listed := parent.get(key), list) else []
    return [item for item in value if isinstance(item, dict)]


def node_file_path(environ: Mapping[str, str]) -> str:
    """Return the path of the node's file. A path that is not absolute is replaced by the default."""
    path = environ.get(OTEL_PYTHON_TORCHDIST_CONFIG, "").strip()
    return path if os.path.isabs(path) else NODE_FILE


def declared_files(environ: Mapping[str, str], for_rank: bool = True) -> tuple[DeclaredFile, ...]:
    """Read the configuration files of a process, in order of precedence.

    Args:
        environ: The environment variables.
        for_rank: Whether to read only what ranks need. Exporters and resource are then missing from some files.
    """
    words = _READ_BY_RANKS if for_rank else ()
    files: list[DeclaredFile] = []
    job_path = environ.get(OTEL_CONFIG_FILE, "").strip()
    if job_path:
        files.append(_read(FileOrigin.JOB, job_path, words))
    node_path = node_file_path(environ)
    if _exists(node_path) and node_path != os.devnull:
        files.append(_read(FileOrigin.NODE, node_path, words))
    return tuple(files)


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a null byte
        return False


def _read(origin: FileOrigin, path: str, words: tuple[str, ...]) -> DeclaredFile:
    try:
        content = _content(path, is_trusted=origin is FileOrigin.JOB)
        if words and not any(word in content for word in words):
            return DeclaredFile(origin, path)
        document = _parsed(path, content)
    except OSError as error:
        return DeclaredFile(origin, path, problem=f"it cannot be read ({error.strerror or error})")
    except (ValueError, RecursionError) as error:
        return DeclaredFile(origin, path, problem=" ".join(str(error).split()) or "it is nested too deeply")
    if document in (None, ""):
        return DeclaredFile(origin, path)
    if not isinstance(document, dict):
        return DeclaredFile(origin, path, problem="it is not a mapping of keys to values")
    return DeclaredFile(origin, path, document)  # pyright: ignore[reportUnknownArgumentType]


def _content(path: str, is_trusted: bool) -> str:
    """Read a regular file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not a regular file, too large, not UTF-8, or not trustworthy.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        distrust = "" if is_trusted else _distrust(status)
        if distrust:
            raise ValueError(distrust)
        content = bytearray()
        while chunk := os.read(file, MAX_BYTES + 1 - len(content)):
            content += chunk
    finally:
        os.close(file)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from error


def _distrust(status: os.stat_result) -> str:
    """Return why a file may contain what neither root nor this user has written; '' if it cannot."""
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"users other than its owner can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_uid in (0, os.geteuid()) or _is_outside_namespace(status.st_uid):
        return ""
    return f"it belongs to user {status.st_uid}, and neither to root nor to this user"


def _is_outside_namespace(uid: int) -> bool:
    """Return whether a user id stands for all users outside this user namespace.

    In containers without root (Apptainer, enroot, Podman), files that root of the node has mounted belong to it.
    """
    try:
        with open("/proc/sys/fs/overflowuid", encoding="ascii") as stream:
            outside = int(stream.read())
        with open("/proc/self/uid_map", encoding="ascii") as stream:
            mapped = sum(int(line.split()[2]) for line in stream)
    except (OSError, ValueError, IndexError):
        return False
    return uid == outside and mapped < 2**32 - 1


def _parsed(path: str, content: str) -> object:
    """Parse YAML, or JSON if the file is named so.

    Raises:
        ValueError: The content is not valid, or PyYAML is missing.
    """
    if path.lower().endswith(".json"):
        try:
            return json.loads(content)
        except ValueError as error:
            raise ValueError(f"it is not JSON: {error}") from error
    try:
        import yaml  # imported late: most processes read no such file
    except ImportError as error:
        raise ValueError("PyYAML is not installed (pip install pyyaml, or name a .json file)") from error
    try:
        # The base loader keeps scalars as text. `CBaseLoader` is missing if PyYAML was built without libyaml.
        return yaml.load(content, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {error}") from error


def text_of(value: object, environ: Mapping[str, str]) -> str | None:
    """Return a value as the text that its environment variable would have; None for a mapping.

    Args:
        value: A scalar, or a list of scalars, as parsed.
        environ: Replaces references such as `${VAR:-default}`.
    """
    match value:
        case None | "null" | "~":
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return _substituted(value, environ)
        case int() | float():
            return str(value)
        case list():
            texts = [text_of(item, environ) for item in cast("list[object]", value)]
            return None if None in texts else ",".join(text or "" for text in texts)
        case _:
            return None


def _substituted(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:-default}` as OpenTelemetry's specification requires; `$$` is a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        return (environ.get(match[1], "") or match[2] or "") if match[1] else "$"

    return _REFERENCE.sub(replace, text)
