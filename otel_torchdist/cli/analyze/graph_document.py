"""The parallelism graph as JSON, in the document of an analysis.

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
"""

from __future__ import annotations

import dataclasses
from typing import Any

from otel_torchdist.parallelism.graph import Graph, Groups


def graph_document(found: Graph) -> dict[str, Any]:
    """Build the document."""
    return {
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
