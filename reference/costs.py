"""The figures of docs/costs.md, as a run of `make bench ARGS="--json FILE"` has measured them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from reference.pages import table

KEPT: Final = Path(__file__).with_name("costs.json")
_BEGIN: Final = "<!-- Figures of {} from reference/costs.json, by `make docs`: change neither by hand. -->"
BLOCK: Final = re.compile(
    rf"(?P<begin>{re.escape(_BEGIN).replace(re.escape('{}'), '(?P<name>[a-z_]+)')})\n.*?(?P<end><!-- Until here. -->)",
    re.DOTALL,
)
_SHOWN: Final = ("title", "columns", "rows", "goals")


def keep(results: Path, kept: Path = KEPT) -> None:
    """Keep what the page shows of a file of results; every round of every figure is more than a repository needs.

    Raises:
        OSError: It cannot be read, or `costs.json` cannot be written.
        ValueError: It is no file of results.
    """
    content = json.loads(results.read_text(encoding="utf-8"))
    sections = {name: section for name, section in content.items() if name != "machine"}
    if "machine" not in content or not all(set(_SHOWN) <= set(section) for section in sections.values()):
        raise ValueError(f"{results}: not what `make bench` writes")
    shown = {name: {key: section[key] for key in _SHOWN} for name, section in sections.items()}
    kept.write_text(json.dumps({"machine": content["machine"], **shown}, indent=1) + "\n", encoding="utf-8")


def with_figures(page: str, figures: Path = KEPT) -> str:
    """The page with the figures that are kept; as it is where none are, and where a section was not measured."""
    if not figures.exists():
        return page
    kept = json.loads(figures.read_text(encoding="utf-8"))

    def filled(block: re.Match[str]) -> str:
        name = block["name"]
        if name not in kept:
            return block[0]
        text = _machine(kept[name]) if name == "machine" else _section(kept[name])
        return f"{block['begin']}\n\n{text}\n\n{block['end']}"

    return BLOCK.sub(filled, page)


def _machine(machine: Mapping[str, Any]) -> str:
    return f"Measured in one run on: {', '.join(f'{key} {value}' for key, value in machine.items())}."


def _section(section: Mapping[str, Any]) -> str:
    parts = [f"**{section['title']}**", table(section["columns"], section["rows"])]
    goals: Sequence[Mapping[str, Any]] = section["goals"]
    if goals:
        parts.append("\n".join(f"- {goal['sentence']}" for goal in goals))
    return "\n\n".join(parts)
