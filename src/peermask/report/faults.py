"""Who was missing when, in a run over a real network."""

from __future__ import annotations

from typing import Any

from peermask.experiment.folder import RunFolder, read_rows

MOST = 20_000  # rows a page can show


def read_faults(folder: RunFolder) -> dict[str, Any] | None:
    """From faults.csv, where a fleet wrote one: [round, agent, missing neighbour] and what was done about it."""
    path = folder.path / "faults.csv"
    if not path.is_file():
        return None
    rows = read_rows(path)
    policies = sorted({row.get("policy") or "" for row in rows})
    return {
        "count": len(rows),
        "policies": policies,
        "rows": [
            [int(row["round"]), int(row["agent"]), int(row["missing"]), policies.index(row.get("policy") or "")]
            for row in rows[:MOST]
        ],
    }
