"""Show sets of version 2 of zarr in version 3, if others of the sets to join have version 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from refshard_fs.cubes.choice import VERSION_3
from refshard_fs.sets.opened_set import is_open
from refshard_fs.sets.variables import NamedSet

ReadAgain = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[NamedSet]]


def convert_to_common_version(
    parts: Sequence[NamedSet], options: Mapping[str, Any], read: ReadAgain
) -> tuple[list[NamedSet], set[int]]:
    """Return the ``parts``, all in version 3 if one has version 3, and the numbers of those that were converted.

    ``read(sources, options)`` reads sources again. Open filesystems are not converted.
    """
    versions = [get_version(part) for part in parts]
    converted = {n for n, part in enumerate(parts) if versions[n] == 2 and not is_open(part.fo)}
    if 3 not in versions or not converted:
        return list(parts), set()
    more = {**options, "select": [*(options.get("select") or ()), VERSION_3.to_json()]}
    numbers = sorted(converted)
    again = dict(zip(numbers, read([parts[n].fo for n in numbers], more), strict=True))
    return [
        msgspec.structs.replace(again[n], name=part.name) if n in again else part for n, part in enumerate(parts)
    ], converted


def get_version(part: NamedSet) -> int | None:
    """Return the version of the metadata of a set; None if it has no arrays."""
    return next((variable.meta.zarr_format for variable in part.variables.values()), None)
