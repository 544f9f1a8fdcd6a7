"""Check that the names in a selection exist: a source may lack some of them, but each must be in one source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from refshard_fs.core.keys import is_within
from refshard_fs.cubes.choice import Choice
from refshard_fs.errors import ManifestError
from refshard_fs.sets.sources import read_sets
from refshard_fs.sets.variables import NamedSet
from refshard_fs.source.collect import UnreadArrays

BATCH: Final = 64  # the most sources that are searched for a name at a time: the first source has most names


def check_chosen_names(
    choice: Choice, selected: Sequence[NamedSet], sources: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Raise ManifestError for a name in ``choice`` that no source has.

    The ``selected`` parts of sources show names to keep. To find other names, whole sources are opened with ``options``
    in order, until one has the name: most often it is the first.
    """
    missing = [(argument, name) for argument in ("drop", "rename") for name in getattr(choice, argument)]
    for argument in ("keep", "attrs"):
        names = [name for name in getattr(choice, argument) or () if name.strip("/") and name not in choice.rename]
        missing += [(argument, name) for name in names if not any(_has(part, name) for part in selected)]
    known: set[str] = set()
    start, count = 0, 1
    while missing and start < len(sources):
        failed: dict[int, Exception] = {}
        unread = UnreadArrays(frozenset())
        parts = read_sets(sources[start : start + count], options, lambda _: None, failed, unread=unread)
        if failed:  # a source cannot be opened whole, perhaps because of a variable that the user drops
            return
        missing = [(argument, name) for argument, name in missing if not any(_has(part, name) for part in parts)]
        known |= {path for part in parts for path in part.variables}
        start, count = start + count, min(2 * count, BATCH)
    if missing:
        argument, name = missing[0]
        names = sorted(known)
        raise ManifestError(f"{argument}= names {name!r}, which no source has: their variables are {', '.join(names)}")


def _has(part: NamedSet, name: str) -> bool:
    """Return whether ``part`` has a variable, group or dimension ``name``; with a slash, it is a path."""
    path = name.strip("/")
    if "/" in name:
        return any(is_within(known, path) for known in part.variables)
    return any(path in known.split("/") or path in variable.dims for known, variable in part.variables.items())
