"""Make coordinates equal that differ between sets only by rounding. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refshard_fs.core.stats import format_count
from refshard_fs.sets.changed_set import ChangedSet
from refshard_fs.sets.variables import NamedSet


def equalize_coordinates(parts: Sequence[NamedSet], tolerance: float) -> tuple[list[NamedSet], str]:
    """Give coordinates that differ by at most ``tolerance`` the values of the first set; return the sets and a remark.

    The remark says in one line which coordinates differ, and by how much; it is empty if none does.
    """
    if tolerance < 0:
        raise ValueError(f"tolerance={tolerance}: expected a number of at least 0")
    if not tolerance:
        return list(parts), ""
    found, most, counts = list(parts), dict[str, float](), dict[str, int]()
    for path in dict.fromkeys(path for part in parts for path, v in part.variables.items() if v.is_coordinate):
        owners = [number for number, part in enumerate(parts) if path in part.variables]
        first = parts[owners[0]].decode_values(path)
        for number in owners[1:]:
            part, values = parts[number], parts[number].decode_values(path)
            if first is None or values is None or first.shape != values.shape or not first.size:
                continue
            if {first.dtype.kind, values.dtype.kind} - set("iuf"):
                continue
            apart = float(np.abs(values.astype("f8") - first).max())
            if 0 < apart <= tolerance:
                changed = ChangedSet(found[number])
                changed.put_values(part.variables[path], first.astype(values.dtype.newbyteorder("="), copy=False))
                found[number] = changed.finish()
                most[path], counts[path] = max(most.get(path, 0), apart), counts.get(path, 0) + 1
    said = [f"{path!r} of {format_count(counts[path], 'set')} differs by up to {most[path]:.2g}" for path in most]
    return found, f"{' and '.join(said)}, and is shown as the first set has it" if said else ""
