"""The expressions of all rules, so that they can be evaluated for a healthy job too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from deploy.native.servers import DEPLOY

RULES: Final = sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))
_BOUND: Final = re.compile(r" (==|>) [\d.]+(?=\)?$)", re.MULTILINE)


def rule_expressions() -> Iterator[tuple[str, str]]:
    """Name and expression of each rule: for an alert the value compared with a bound, over a window of seconds."""
    for file in RULES:
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                if "record" in rule:
                    yield rule["record"], rule["expr"]
                else:
                    yield rule["alert"], _BOUND.sub("", rule["expr"]).replace("offset 1m", "offset 15s")
