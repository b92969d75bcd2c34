"""The parallelism graph as one JSON document, for programs.

Keys are only ever added within a schema. Unknown values are null.

- `schema`: 1.
- `source`: `run` (32 hex digits, or null), `place`, `world_size`, `unknown_ranks`: ranks of the job whose calls are not
  known.
- `steady`: whether only calls from the third step on were counted; otherwise all were.
- `axes`: the axes of the grid, the one with the nearest neighbours first: `size`, `stride` (null if it is not the same
  everywhere), and the keys of groups.
- `copies`: how many grids of this shape the world holds.
- `groups`: what is along no axis, with `span`: the axes (from 0; their number stands for the copies) of which each
  group is a product, or null; and the keys of groups.
- keys of groups: `members` of each, `inferred`, `names`, `misnamed` (names that promise something else), `roles`
  (`role`, `calls`, `sent_bytes`, `share`, `evidence`), `sent_bytes`, `across_hosts` (how many, or null), `imbalance` of
  `all_to_all` in the group where that is worst (null if it is not known, or there is none): `members`, `rank` with the
  most bytes (received or sent, where members differ more), `ratio` of that to the mean, number of `exchanges` that
  were compared, and `typical_ratio`: the median over these of what the busiest rank has in each, by the mean.
- `traffic`: `from`, `to`, `bytes` from rank to rank, if libraries use rings in the order of the ranks.
- `unattributed_bytes`: of `all_to_all` in groups of more than 128 ranks, and of messages to ranks that are not
  recorded, which `traffic` leaves out.
- `hosts`: by rank, where that is known.
- `warnings`: what could not be read, and why.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from otel_torchdist.cli.histories import Source
from otel_torchdist.parallelism.graph import Graph, Groups

SCHEMA: Final = 1


def document_of(found: Graph, source: Source) -> dict[str, Any]:
    """Build the document."""
    return {
        "schema": SCHEMA,
        "source": source.described(found.world_size, found.unseen),
        "steady": found.has_steps,
        "axes": [
            {"size": family.size, "stride": family.stride, **_groups(axis)}
            for family, axis in zip(found.grid.axes, found.axes, strict=True)
        ],
        "copies": found.grid.copies,
        "groups": [{"span": list(one.span) if one.span is not None else None, **_groups(one)} for one in found.others],
        "traffic": [
            {"from": sender, "to": receiver, "bytes": size} for (sender, receiver), size in sorted(found.sent.items())
        ],
        "unattributed_bytes": found.unspread,
        "hosts": {str(rank): host for rank, host in sorted(found.hosts.items())},
        "warnings": list(source.warnings),
    }


def _groups(groups: Groups) -> dict[str, Any]:
    return {
        "members": [list(members) for members in groups.members],
        "inferred": groups.is_inferred,
        "names": list(groups.descriptions),
        "misnamed": list(groups.misnamed),
        "roles": [
            {
                "role": one.role.value,
                "calls": one.calls,
                "sent_bytes": round(one.sent),
                "share": round(one.share, 4),
                "evidence": one.text,
            }
            for one in groups.roles
        ],
        "sent_bytes": round(groups.sent),
        "across_hosts": groups.across_hosts,
        "imbalance": dataclasses.asdict(groups.imbalance) if groups.imbalance is not None else None,
    }
