"""Reports: what a task tells the driver, and what the packing of a stream tells all shards.

Both are JSON objects that travel as parcels beside the rows.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.physical.parcels import REPORT, REPORT_STAGE, SOURCE, Parcel


def report(content: dict[str, Any]) -> Parcel:
    """Return a parcel for the driver."""
    return Parcel(REPORT_STAGE, 0, -1, REPORT, json.dumps(content).encode())


def announce(content: dict[str, Any], shards: int) -> list[Parcel]:
    """Return the parcels that tell every shard how far partitions of a stream have come.

    They are for the first stage; each stage passes them on to the next.
    """
    blob = json.dumps(content).encode()
    return [Parcel(0, shard, -1, SOURCE, blob) for shard in range(shards)]


def read_report(parcel: Parcel) -> dict[str, Any]:
    """Return the content of a report or of a source's announcement."""
    content: dict[str, Any] = json.loads(bytes(parcel.blob))
    return content
