"""The figures of docs/costs.md, measured by a run of `make bench ARGS="--json FILE"`."""

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
    """Store those results that the page shows in `costs.json`; a result file also contains every single round.

    Raises:
        OSError: The results cannot be read, or `costs.json` cannot be written.
        ValueError: The file is not a result file.
    """
    content = json.loads(results.read_text(encoding="utf-8"))
    sections = {name: section for name, section in content.items() if name != "machine"}
    if "machine" not in content or not all(set(_SHOWN) <= set(section) for section in sections.values()):
        raise ValueError(f"{results}: not a result file of `make bench`")
    shown = {name: {key: section[key] for key in _SHOWN} for name, section in sections.items()}
    kept.write_text(json.dumps({"machine": content["machine"], **shown}, indent=1) + "\n", encoding="utf-8")


def with_figures(page: str, figures: Path = KEPT) -> str:
    """Return the page with the stored figures; sections without figures are unchanged."""
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
