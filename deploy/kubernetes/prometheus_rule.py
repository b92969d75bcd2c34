"""Makes the PrometheusRule of the Prometheus operator from the rule files that Prometheus itself reads.

Kustomize cannot wrap plain files in a resource, so the result is kept in the repository: `make kubernetes-rules` writes
it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).resolve().parent
RULES: Final = HERE.parent / "prometheus" / "rules"
RESULT: Final = HERE / "base" / "monitoring" / "prometheus-rule.yaml"
HEAD: Final = "# Made by prometheus_rule.py from deploy/prometheus/rules; do not change it here.\n"
WIDTH: Final = 120


class RulesError(Exception):
    """The rule files cannot be combined; the message gives the reason."""


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as blocks, and no references: rules are to be read there as well."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def groups_in(directory: Path) -> list[dict[str, Any]]:
    """The groups of all rule files, in the order of the files' names.

    Raises:
        RulesError: There are none, a file is not a rule file, or two groups have the same name.
    """
    groups: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.yaml")):
        try:
            content: Any = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise RulesError(f"{path}: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get("groups"), list):
            raise RulesError(f"{path}: no rule file: it has no list of groups")
        groups += content["groups"]
    names = [group["name"] for group in groups]
    if not groups:
        raise RulesError(f"{directory}: no rules")
    if len(set(names)) < len(names):
        raise RulesError(f"{directory}: two groups have the same name, which one resource cannot hold")
    return groups


def prometheus_rule(groups: list[dict[str, Any]]) -> str:
    """The resource as text."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "torchdist", "labels": {"app.kubernetes.io/name": "torchdist"}},
        "spec": {"groups": groups},
    }
    return HEAD + yaml.dump(resource, Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)


def main() -> int:
    """Write the resource, or with `--check` only report whether it is up to date; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make the PrometheusRule from the rule files.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if it is not up to date")
    parser.add_argument("--rules", type=Path, default=RULES, help="directory with the rule files")
    parser.add_argument("--result", type=Path, default=RESULT, help="file to write")
    options = parser.parse_args()
    try:
        text = prometheus_rule(groups_in(options.rules))
    except RulesError as error:
        print(error, file=sys.stderr)
        return 2
    if not options.check:
        options.result.write_text(text)
        return 0
    if options.result.is_file() and options.result.read_text() == text:
        return 0
    print(f"{options.result} is not up to date: run `make kubernetes-rules`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
