"""The registry of our names in docs/semconv, to compare what is exported with it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import yaml

from tests.support.repository import REPOSITORY

REGISTRY: Final = REPOSITORY / "docs" / "semconv" / "registry"
_TYPES: Final = {"int": int, "double": float, "boolean": bool, "string": str}


@cache
def groups() -> tuple[dict[str, Any], ...]:
    """All groups."""
    files = sorted(REGISTRY.glob("[!r]*.yaml"))
    return tuple(group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"])


@cache
def group(group_id: str) -> dict[str, Any]:
    """One group."""
    [found] = [each for each in groups() if each["id"] == group_id]
    return found


@cache
def definitions() -> dict[str, dict[str, Any]]:
    """Our attributes by name."""
    return {attribute["id"]: attribute for each in groups() for attribute in each["attributes"] if "id" in attribute}


@cache
def names_of_otel() -> frozenset[str]:
    """The attributes that OpenTelemetry defines."""
    package = importlib.import_module("opentelemetry.semconv._incubating.attributes")
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)
    ]
    return frozenset(
        value for module in modules for name, value in vars(module).items() if name.isupper() and isinstance(value, str)
    )


def assert_defined(attributes: Mapping[str, object]) -> None:
    """Every attribute of ours is in the registry, with its type and one of its values."""
    for name, value in attributes.items():
        if not name.startswith("torchdist."):
            continue
        definition = definitions().get(name)
        assert definition is not None, f"the registry has no {name}"
        kind = definition["type"]
        if isinstance(kind, dict):
            assert value in [member["value"] for member in kind["members"]], f"{name}={value}"
        elif kind.endswith("[]"):
            assert isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value), f"{name}={value}"
        else:
            assert type(value) is _TYPES[kind], f"{name}={value!r} is no {kind}"


def assert_belongs(group_id: str, attributes: Mapping[str, object]) -> None:
    """A group has all of these attributes, and these are all that it requires."""
    levels = {each["ref"]: each["requirement_level"] for each in group(group_id)["attributes"]}
    assert attributes.keys() <= levels.keys(), f"{group_id}: {attributes.keys() - levels.keys()}"
    required = {name for name, level in levels.items() if level == "required"}
    assert required <= attributes.keys(), f"{group_id}: {required - attributes.keys()}"
